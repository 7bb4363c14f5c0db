//! SQL functions of the journal. Each is overloaded for a text id and a uuid.

use super::inspect::calls_of;
use super::{Call, begin, error, fail, finish};
use crate::claim::{text_id, uuid_id};
use crate::errors::{Result, given, invalid};
use crate::pg::{ensure_writable, return_rows};
use crate::sql_types::{CompositeDatum, JsonText, enum_datum, result_row};
use idem_core::{CallEvent, CallState, MessageId, limits};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use pgrx::{Uuid, pg_sys};
use std::ffi::CStr;

type Report<T> = std::result::Result<T, ErrorReport>;

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_begin_call(
    id text, destination text, step text, request jsonb DEFAULT NULL, token bigint DEFAULT NULL,
    OUT state idem_call_state, OUT idempotency_key text, OUT response jsonb, OUT attempt integer,
    OUT begun_at timestamptz, OUT error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_begin_call_text_wrapper';
"#
)]
fn idem_begin_call_text(
    id: Option<&str>,
    destination: Option<&str>,
    step: Option<&str>,
    request: Option<JsonText>,
    token: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    begin_call(
        call(text_id(id)?, destination, step)?,
        request,
        token,
        fcinfo,
    )
}

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_begin_call(
    id uuid, destination text, step text, request jsonb DEFAULT NULL, token bigint DEFAULT NULL,
    OUT state idem_call_state, OUT idempotency_key text, OUT response jsonb, OUT attempt integer,
    OUT begun_at timestamptz, OUT error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_begin_call_uuid_wrapper';
"#
)]
fn idem_begin_call_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    step: Option<&str>,
    request: Option<JsonText>,
    token: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    begin_call(
        call(uuid_id(id)?, destination, step)?,
        request,
        token,
        fcinfo,
    )
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

fn begin_call(
    call: Call,
    request: Option<JsonText>,
    token: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    ensure_writable(c"idem_begin_call()");
    let begun = begin(call, request.as_ref().map(JsonText::as_str), token)?;
    Ok(CompositeDatum::labelled(
        fcinfo,
        label(begun.state),
        &[
            begun.idempotency_key.to_string().into_datum(),
            begun.response,
            begun.attempt.into_datum(),
            begun.begun_at.into_datum(),
            begun.error.into_datum(),
        ],
    )?)
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

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_finish_call(
    id text, destination text, step text, response jsonb DEFAULT NULL
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_finish_call_text_wrapper';
"#
)]
fn idem_finish_call_text(
    id: Option<&str>,
    destination: Option<&str>,
    step: Option<&str>,
    response: Option<JsonText>,
) -> Report<()> {
    finish_call(call(text_id(id)?, destination, step)?, response)
}

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_finish_call(
    id uuid, destination text, step text, response jsonb DEFAULT NULL
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_finish_call_uuid_wrapper';
"#
)]
fn idem_finish_call_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    step: Option<&str>,
    response: Option<JsonText>,
) -> Report<()> {
    finish_call(call(uuid_id(id)?, destination, step)?, response)
}

fn finish_call(call: Call, response: Option<JsonText>) -> Report<()> {
    ensure_writable(c"idem_finish_call()");
    Ok(finish(call, response.as_ref())?)
}

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_fail_call(
    id text, destination text, step text, error text, retryable boolean DEFAULT true
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_call_text_wrapper';
"#
)]
fn idem_fail_call_text(
    id: Option<&str>,
    destination: Option<&str>,
    step: Option<&str>,
    error: Option<&str>,
    retryable: Option<bool>,
) -> Report<()> {
    fail_call(call(text_id(id)?, destination, step)?, error, retryable)
}

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_fail_call(
    id uuid, destination text, step text, error text, retryable boolean DEFAULT true
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_call_uuid_wrapper';
"#
)]
fn idem_fail_call_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    step: Option<&str>,
    error: Option<&str>,
    retryable: Option<bool>,
) -> Report<()> {
    fail_call(call(uuid_id(id)?, destination, step)?, error, retryable)
}

fn fail_call(call: Call, error: Option<&str>, retryable: Option<bool>) -> Report<()> {
    let error = given(error, "error")?;
    let retryable = given(retryable, "retryable")?;
    if error.len() > limits::ERROR_BYTES {
        invalid(
            format!("the error has {} bytes", error.len()),
            format!(
                "It must have at most {} bytes: truncate it.",
                limits::ERROR_BYTES
            ),
        )?;
    }
    ensure_writable(c"idem_fail_call()");
    Ok(fail(call, error, retryable)?)
}

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_calls(
    id text, destination text
) RETURNS TABLE (
    step text, state idem_call_state, attempt integer, begun_at timestamptz, ended_at timestamptz,
    response jsonb, error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_calls_text_wrapper';
"#
)]
fn idem_calls_text(
    id: Option<&str>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<()> {
    calls(text_id(id)?, destination, fcinfo)
}

#[pg_extern(
    requires = ["journal"],
    sql = r#"
CREATE FUNCTION idem_calls(
    id uuid, destination text
) RETURNS TABLE (
    step text, state idem_call_state, attempt integer, begun_at timestamptz, ended_at timestamptz,
    response jsonb, error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_calls_uuid_wrapper';
"#
)]
fn idem_calls_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<()> {
    calls(uuid_id(id)?, destination, fcinfo)
}

fn calls(id: MessageId, destination: Option<&str>, fcinfo: pg_sys::FunctionCallInfo) -> Report<()> {
    let pages = calls_of(id, given(destination, "destination")?)?;
    let desc = result_row(fcinfo)?;
    let rows = pages.iter().map(|(step, page)| {
        let state = page.attempts.state();
        // The end of one attempt does not end the call if an earlier attempt may have had its
        // effect.
        let ended = page
            .last()
            .filter(|last| state != CallState::Unknown && last.event != CallEvent::Begun);
        Ok([
            step.as_str().into_datum(),
            Some(enum_datum(desc, 2, label(state))?),
            page.attempts.made().into_datum(),
            page.attempts.begun_at().into_datum(),
            ended.map(|last| last.at).into_datum(),
            ended
                .filter(|_| state == CallState::Done)
                .and_then(|last| last.body),
            error(page, ended.is_some() && state != CallState::Done).into_datum(),
        ])
    });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    return_rows(fcinfo, rows.into_iter());
    Ok(())
}
