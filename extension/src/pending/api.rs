//! SQL functions that lease, complete and receive messages. Each is overloaded for a text id and a
//! uuid.

use super::acquire::{Acquired, acquire};
use super::lease;
use super::receive::{Message, receive};
use crate::claim::{text_id, uuid_id};
use crate::complete::complete;
use crate::effects::parse;
use crate::errors::{Error, given, invalid};
use crate::pg::ensure_writable;
use crate::sql_types::{CompositeDatum, JsonText};
use idem_core::{JSON, MessageId, OCTETS, check_len, limits, traceparent};
use pgrx::datum::Interval;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use pgrx::{Uuid, pg_sys};
use std::ffi::CStr;

type Report<T> = std::result::Result<T, ErrorReport>;

#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_acquire(
    id text, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_text_wrapper';
"#
)]
fn idem_acquire_text(
    id: Option<&str>,
    destination: Option<&str>,
    lease: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    acquire_lease(text_id(id)?, destination, lease, fcinfo)
}

#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_acquire(
    id uuid, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_uuid_wrapper';
"#
)]
fn idem_acquire_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    lease: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    acquire_lease(uuid_id(id)?, destination, lease, fcinfo)
}

fn acquire_lease(
    id: MessageId,
    destination: Option<&str>,
    lease: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    let destination = given(destination, "destination")?;
    let lease = lease::microseconds(given(lease, "lease")?)?;
    ensure_writable(c"idem_acquire()");
    let (label, lease, retry_after) = match acquire(id, destination, lease)? {
        Acquired::Leased(lease) => (c"acquired", Some(lease), None),
        Acquired::Exhausted(lease) => (c"exhausted", Some(lease), None),
        Acquired::Duplicate => (c"duplicate", None, None),
        Acquired::InProgress { retry_after } => (c"in_progress", None, Some(retry_after)),
        Acquired::Dead => (c"dead", None, None),
    };
    let retry_after = retry_after.and_then(|microseconds| Interval::new(0, 0, microseconds).ok());
    Ok(CompositeDatum::labelled(
        fcinfo,
        label,
        &[
            lease.as_ref().and_then(|lease| lease.token.into_datum()),
            lease.as_ref().and_then(|lease| lease.attempt.into_datum()),
            retry_after.and_then(IntoDatum::into_datum),
            lease
                .and_then(|lease| lease.last_error)
                .and_then(IntoDatum::into_datum),
        ],
    )?)
}

// The default is in the SQL declaration, because pgrx cannot declare a default for jsonb.
#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_complete(
    id text, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_wrapper';
"#
)]
fn idem_complete(
    id: Option<&str>,
    destination: Option<&str>,
    token: Option<i64>,
    effects: Option<JsonText>,
) -> Report<Vec<Uuid>> {
    complete_lease(text_id(id)?, destination, token, effects)
}

#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_complete(
    id uuid, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_uuid_wrapper';
"#
)]
fn idem_complete_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    token: Option<i64>,
    effects: Option<JsonText>,
) -> Report<Vec<Uuid>> {
    complete_lease(uuid_id(id)?, destination, token, effects)
}

fn complete_lease(
    id: MessageId,
    destination: Option<&str>,
    token: Option<i64>,
    effects: Option<JsonText>,
) -> Report<Vec<Uuid>> {
    let destination = given(destination, "destination")?;
    let token = given(token, "token")?;
    let effects = given(effects, "effects")?;
    let effects = parse(&effects)?;
    ensure_writable(c"idem_complete()");
    Ok(complete(id, destination, token, &effects)?
        .into_iter()
        .map(|id| Uuid::from_bytes(id.into_bytes()))
        .collect())
}

#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_receive(
    id text, destination text, payload jsonb, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_text_wrapper';
"#
)]
#[allow(clippy::too_many_arguments)]
fn idem_receive_text(
    id: Option<&str>,
    destination: Option<&str>,
    payload: Option<JsonText>,
    headers: Option<JsonText>,
    key: Option<&str>,
    deliver_after: Option<TimestampWithTimeZone>,
    kind: Option<&str>,
    content_type: Option<&str>,
) -> Report<bool> {
    let id = text_id(id)?;
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

#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_receive(
    id uuid, destination text, payload jsonb, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_uuid_wrapper';
"#
)]
#[allow(clippy::too_many_arguments)]
fn idem_receive_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    payload: Option<JsonText>,
    headers: Option<JsonText>,
    key: Option<&str>,
    deliver_after: Option<TimestampWithTimeZone>,
    kind: Option<&str>,
    content_type: Option<&str>,
) -> Report<bool> {
    let id = uuid_id(id)?;
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

#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_receive_bytes(
    id text, destination text, payload bytea, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_bytes_text_wrapper';
"#
)]
#[allow(clippy::too_many_arguments)]
fn idem_receive_bytes_text(
    id: Option<&str>,
    destination: Option<&str>,
    payload: Option<&[u8]>,
    headers: Option<JsonText>,
    key: Option<&str>,
    deliver_after: Option<TimestampWithTimeZone>,
    kind: Option<&str>,
    content_type: Option<&str>,
) -> Report<bool> {
    let id = text_id(id)?;
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

#[pg_extern(
    requires = ["pending"],
    sql = r#"
CREATE FUNCTION idem_receive_bytes(
    id uuid, destination text, payload bytea, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_bytes_uuid_wrapper';
"#
)]
#[allow(clippy::too_many_arguments)]
fn idem_receive_bytes_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    payload: Option<&[u8]>,
    headers: Option<JsonText>,
    key: Option<&str>,
    deliver_after: Option<TimestampWithTimeZone>,
    kind: Option<&str>,
    content_type: Option<&str>,
) -> Report<bool> {
    let id = uuid_id(id)?;
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
