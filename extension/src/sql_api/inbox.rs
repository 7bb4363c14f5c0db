//! The functions of the durable inbox (sql/api/inbox.sql).

use super::Report;
use crate::errors::{Error, given, invalid};
use crate::pending::next::next;
use crate::pending::receive::{Message, receive};
use crate::pending::{lease, wait};
use crate::pg::{ensure_newest_state, ensure_writable, return_rows};
use crate::settings::check_payload;
use crate::sql_types::JsonText;
use crate::wake::deadline;
use idem_core::{JSON, MessageId, OCTETS, check_destination, check_len, limits, traceparent};
use pgrx::datum::Interval;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

overloads! {
    fn idem_receive_text | idem_receive_uuid(
        id,
        destination: Option<&str>,
        payload: Option<JsonText>,
        headers: Option<JsonText>,
        key: Option<&str>,
        deliver_after: Option<TimestampWithTimeZone>,
        kind: Option<&str>,
        content_type: Option<&str>
    ) -> Report<bool> {
        let payload = given(payload, "payload")?;
        let carried = ReceiveArguments {
            function: c"idem_receive()",
            payload: payload.as_str().as_bytes(),
            content_type: content_type.unwrap_or(JSON),
            kind,
            key,
            headers: headers.as_ref(),
            deliver_after,
        };
        receive_message(id, destination, &carried)
    }
}

overloads! {
    fn idem_receive_bytes_text | idem_receive_bytes_uuid(
        id,
        destination: Option<&str>,
        payload: Option<&[u8]>,
        headers: Option<JsonText>,
        key: Option<&str>,
        deliver_after: Option<TimestampWithTimeZone>,
        kind: Option<&str>,
        content_type: Option<&str>
    ) -> Report<bool> {
        let payload = given(payload, "payload")?;
        let carried = ReceiveArguments {
            function: c"idem_receive_bytes()",
            payload,
            content_type: content_type.unwrap_or(OCTETS),
            kind,
            key,
            headers: headers.as_ref(),
            deliver_after,
        };
        receive_message(id, destination, &carried)
    }
}

/// The arguments of `idem_receive` and `idem_receive_bytes` other than the identity.
struct ReceiveArguments<'a> {
    function: &'static CStr,
    payload: &'a [u8],
    content_type: &'a str,
    kind: Option<&'a str>,
    key: Option<&'a str>,
    headers: Option<&'a JsonText>,
    deliver_after: Option<TimestampWithTimeZone>,
}

fn receive_message(
    id: MessageId,
    destination: Option<&str>,
    carried: &ReceiveArguments,
) -> Report<bool> {
    let destination = given(destination, "destination")?;
    check_len("the content_type", carried.content_type, limits::NAME_BYTES).map_err(Error::from)?;
    if let Some(key) = carried.key {
        check_len("the key", key, limits::KEY_BYTES).map_err(Error::from)?;
    }
    if let Some(kind) = carried.kind {
        check_len("the type", kind, limits::NAME_BYTES).map_err(Error::from)?;
    }
    let headers = carried.headers.map(JsonText::as_str);
    let traceparent = traceparent("the message", headers).map_err(Error::from)?;
    check_payload(carried.payload.len())?;
    let deliver_after = carried.deliver_after.map(pg_sys::TimestampTz::from);
    if deliver_after == Some(i64::MAX) {
        invalid(
            "deliver_after is infinity",
            "Specify a finite time, or null to deliver the message at once.",
        )?;
    }
    ensure_writable(carried.function);
    let message = Message {
        payload: carried.payload,
        content_type: carried.content_type,
        kind: carried.kind,
        key: carried.key,
        headers,
        traceparent,
        deliver_after,
    };
    Ok(receive(id, destination, &message)?)
}

/// Maximum number of messages in one function call.
const MAX_MESSAGES: i32 = 10_000;

/// Maximum bytes of payloads and headers in one function call, as for a batch of a relay.
const MAX_BYTES: i64 = 1024 * 1024 * 1024;

#[pg_extern(sql = false)]
fn idem_next(
    destination: Option<&str>,
    max_messages: Option<i32>,
    lease: Option<Interval>,
    max_bytes: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<()> {
    let max_messages = given(max_messages, "max_messages")?;
    if !(1..=MAX_MESSAGES).contains(&max_messages) {
        invalid(
            format!("max_messages is {max_messages}"),
            format!("It must be between 1 and {MAX_MESSAGES}."),
        )?;
    }
    let lease = lease::microseconds(given(lease, "lease")?)?;
    let max_bytes = given(max_bytes, "max_bytes")?;
    if !(1..=MAX_BYTES).contains(&max_bytes) {
        invalid(
            format!("max_bytes is {max_bytes}"),
            format!("It must be between 1 and {MAX_BYTES} (1 GB)."),
        )?;
    }
    let destination = given(destination, "destination")?;
    check_destination(destination).map_err(Error::from)?;
    ensure_newest_state(c"idem_next()")?;
    let messages = next(
        destination,
        lease,
        max_messages as usize,
        max_bytes as usize,
    )?;
    return_rows(fcinfo, messages.into_iter());
    Ok(())
}

#[pg_extern(sql = false)]
fn idem_next_wait(destination: Option<&str>, timeout_ms: Option<i32>) -> Report<bool> {
    let destination = given(destination, "destination")?;
    check_destination(destination).map_err(Error::from)?;
    let deadline = deadline(timeout_ms)?;
    ensure_newest_state(c"idem_next_wait()")?;
    Ok(wait::wait(destination, deadline)?)
}
