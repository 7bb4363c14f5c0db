//! The functions of the journal of external calls (sql/api/journal.sql).

use super::Report;
use super::expanded::ensure_called_once;
use crate::errors::{Result, given};
use crate::journal::{Call, CallHistory, begin, calls_of, fail, finish};
use crate::pg::{ensure_writable, return_rows};
use crate::settings::check_payload;
use crate::sql_types::{CompositeDatum, JsonText, enum_datum, result_row};
use idem_core::{CallEvent, CallState, MessageId};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

overloads! {
    fn idem_begin_call_text | idem_begin_call_uuid(
        id,
        destination: Option<&str>,
        step: Option<&str>,
        request: Option<JsonText>,
        token: Option<i64>,
        fcinfo: pg_sys::FunctionCallInfo
    ) -> Report<CompositeDatum> {
        let call = call(id, destination, step)?;
        ensure_writable(c"idem_begin_call()");
        let begun = begin(call, request.as_ref().map(JsonText::as_str), token)?;
        ensure_called_once(fcinfo, c"idem_begin_call")?;
        Ok(CompositeDatum::labelled(
            fcinfo,
            label(begun.state),
            &[
                begun.idempotency_key.to_string().into_datum(),
                begun.response.into_datum(),
                begun.attempt.into_datum(),
                begun.begun_at.into_datum(),
                begun.error.into_datum(),
            ],
        )?)
    }
}

fn call<'a>(
    id: MessageId<'a>,
    destination: Option<&'a str>,
    step: Option<&'a str>,
) -> Result<Call<'a>> {
    Ok(Call {
        id,
        destination: given(destination, "destination")?,
        step: given(step, "step")?,
    })
}

/// Returns the label of the state in `idem_call_state`.
fn label(state: CallState) -> &'static CStr {
    match state {
        CallState::New => c"new",
        CallState::Unknown => c"unknown",
        CallState::Done => c"done",
        CallState::Failed => c"failed",
    }
}

overloads! {
    fn idem_finish_call_text | idem_finish_call_uuid(
        id,
        destination: Option<&str>,
        step: Option<&str>,
        response: Option<&str>
    ) -> Report<()> {
        let call = call(id, destination, step)?;
        check_payload(response.map_or(0, str::len))?;
        ensure_writable(c"idem_finish_call()");
        Ok(finish(call, response)?)
    }
}

overloads! {
    fn idem_fail_call_text | idem_fail_call_uuid(
        id,
        destination: Option<&str>,
        step: Option<&str>,
        error: Option<&str>,
        retryable: Option<bool>
    ) -> Report<()> {
        let call = call(id, destination, step)?;
        let error = idem_core::truncated_error(given(error, "error")?);
        let retryable = given(retryable, "retryable")?;
        ensure_writable(c"idem_fail_call()");
        Ok(fail(call, error, retryable)?)
    }
}

overloads! {
    fn idem_calls_text | idem_calls_uuid(
        id,
        destination: Option<&str>,
        fcinfo: pg_sys::FunctionCallInfo
    ) -> Report<()> {
        let calls = calls_of(id, given(destination, "destination")?)?;
        let desc = result_row(fcinfo)?;
        let rows = calls
            .iter()
            .map(|(step, history)| call_row(step, history, desc))
            .collect::<Result<Vec<_>>>()?;
        return_rows(fcinfo, rows.into_iter());
        Ok(())
    }
}

/// Returns a row of `idem_calls`.
fn call_row(
    step: &str,
    history: &CallHistory,
    desc: pg_sys::TupleDesc,
) -> Result<[Option<pg_sys::Datum>; 7]> {
    let state = history.attempts.state();
    // The end of one attempt does not end the call if an earlier attempt may have had its effect.
    let ended = history
        .last()
        .filter(|last| state != CallState::Unknown && last.event != CallEvent::Begun);
    Ok([
        step.into_datum(),
        Some(enum_datum(desc, 2, label(state))?),
        history.attempts.made().into_datum(),
        history.attempts.begun_at().into_datum(),
        ended.map(|last| last.at).into_datum(),
        history
            .body_if(ended.is_some() && state == CallState::Done)
            .into_datum(),
        history
            .body_if(ended.is_some() && state != CallState::Done)
            .into_datum(),
    ])
}
