//! SQL functions that record effects and read them.

use super::read::recorded;
use super::record::record;
use crate::claim::{Outcome, Terms, claim, held, text_id, uuid_id};
use crate::errors::{Error, Result, given};
use crate::outbox::{self, Effect, column};
use crate::pg::{ensure_writable, return_rows, transaction_start};
use crate::ring;
use crate::sql_types::JsonText;
use crate::stats::{Counter, count, count_many};
use idem_core::{
    EffectSpec, JSON, MessageId, OCTETS, check_destination, check_len, limits, parse_effects,
    traceparent,
};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use pgrx::{Uuid, pg_sys};
use std::ffi::CStr;

type Report<T> = std::result::Result<T, ErrorReport>;

#[pg_extern(requires = ["schema"])]
fn idem_record_effects(
    id: Option<&str>,
    destination: Option<&str>,
    effects: Option<JsonText>,
) -> Report<Vec<Uuid>> {
    record_effects(text_id(id)?, destination, effects)
}

#[pg_extern(name = "idem_record_effects", requires = ["schema"])]
fn idem_record_effects_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    effects: Option<JsonText>,
) -> Report<Vec<Uuid>> {
    record_effects(uuid_id(id)?, destination, effects)
}

fn record_effects(
    id: MessageId,
    destination: Option<&str>,
    effects: Option<JsonText>,
) -> Report<Vec<Uuid>> {
    let destination = given(destination, "destination")?;
    let effects = given(effects, "effects")?;
    let effects = parse(&effects)?;
    ensure_writable(c"idem_record_effects()");
    check_destination(destination).map_err(Error::from)?;
    let rings = ring::enter()?;
    Ok(record(&held(id, destination, &rings)?, &effects)?
        .into_iter()
        .map(|id| Uuid::from_bytes(id.into_bytes()))
        .collect())
}

/// Parses the effects argument of a function.
pub fn parse(effects: &JsonText) -> Result<Vec<EffectSpec<'_>>> {
    Ok(parse_effects(effects.as_str(), || {
        check_for_interrupts!();
    })?)
}

#[pg_extern(requires = ["schema"])]
fn idem_try_record(
    id: Option<&str>,
    destination: Option<&str>,
    effects: Option<JsonText>,
) -> Report<bool> {
    try_record(text_id(id)?, destination, effects)
}

#[pg_extern(name = "idem_try_record", requires = ["schema"])]
fn idem_try_record_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    effects: Option<JsonText>,
) -> Report<bool> {
    try_record(uuid_id(id)?, destination, effects)
}

fn try_record(id: MessageId, destination: Option<&str>, effects: Option<JsonText>) -> Report<bool> {
    let destination = given(destination, "destination")?;
    let effects = given(effects, "effects")?;
    let effects = parse(&effects)?;
    ensure_writable(c"idem_try_record()");
    let rings = ring::enter()?;
    let Outcome::Claimed(claimed) = claim(id, destination, &rings, Terms::PLAIN)? else {
        return Ok(false);
    };
    record(&claimed, &effects)?;
    Ok(true)
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_effects(id text, destination text) RETURNS SETOF idem_effect
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_effects_text_wrapper';
"#
)]
fn idem_effects_text(
    id: Option<&str>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<()> {
    effects(text_id(id)?, destination, fcinfo)
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_effects(id uuid, destination text) RETURNS SETOF idem_effect
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_effects_uuid_wrapper';
"#
)]
fn idem_effects_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<()> {
    effects(uuid_id(id)?, destination, fcinfo)
}

fn effects(
    id: MessageId,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<()> {
    /// The columns of `idem_effect`.
    const COLUMNS: [i32; 11] = [
        column::MESSAGE_ID,
        column::ORDINAL,
        column::TOPIC,
        column::KEY,
        column::KIND,
        column::PAYLOAD,
        column::CONTENT_TYPE,
        column::HEADERS,
        column::TRACEPARENT,
        column::DELIVER_AFTER,
        column::RECORDED_AT,
    ];
    let rows = recorded(id, given(destination, "destination")?)?;
    return_rows(
        fcinfo,
        rows.iter()
            .map(|row| COLUMNS.map(|number| row[number as usize - 1])),
    );
    Ok(())
}

#[pg_extern(requires = ["schema"])]
fn idem_replay_effects(id: Option<&str>, destination: Option<&str>) -> Report<i32> {
    replay_effects(text_id(id)?, destination)
}

#[pg_extern(name = "idem_replay_effects", requires = ["schema"])]
fn idem_replay_effects_uuid(id: Option<Uuid>, destination: Option<&str>) -> Report<i32> {
    replay_effects(uuid_id(id)?, destination)
}

/// Copies the recorded rows unchanged, except for their sequence number, into the current slice.
fn replay_effects(id: MessageId, destination: Option<&str>) -> Report<i32> {
    let destination = given(destination, "destination")?;
    ensure_writable(c"idem_replay_effects()");
    let rings = ring::enter()?;
    let rows = recorded(id, destination)?;
    outbox::append_again(&rings.outbox, &rows)?;
    count_many(Counter::EffectReplayed, rows.len());
    Ok(rows.len() as i32)
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_send(
    topic text, payload jsonb, key text DEFAULT NULL, type text DEFAULT NULL,
    headers jsonb DEFAULT NULL, message_id uuid DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_send_wrapper';
"#
)]
fn idem_send(
    topic: Option<&str>,
    payload: Option<JsonText>,
    key: Option<&str>,
    kind: Option<&str>,
    headers: Option<JsonText>,
    message_id: Option<Uuid>,
    content_type: Option<&str>,
) -> Report<Uuid> {
    let payload = given(payload, "payload")?;
    Ok(send(
        c"idem_send()",
        topic,
        payload.as_str().as_bytes(),
        key,
        kind,
        headers,
        message_id,
        content_type.unwrap_or(JSON),
    )?)
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_send_bytes(
    topic text, payload bytea, key text DEFAULT NULL, type text DEFAULT NULL,
    headers jsonb DEFAULT NULL, message_id uuid DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_send_bytes_wrapper';
"#
)]
fn idem_send_bytes(
    topic: Option<&str>,
    payload: Option<&[u8]>,
    key: Option<&str>,
    kind: Option<&str>,
    headers: Option<JsonText>,
    message_id: Option<Uuid>,
    content_type: Option<&str>,
) -> Report<Uuid> {
    let payload = given(payload, "payload")?;
    Ok(send(
        c"idem_send_bytes()",
        topic,
        payload,
        key,
        kind,
        headers,
        message_id,
        content_type.unwrap_or(OCTETS),
    )?)
}

#[allow(clippy::too_many_arguments)]
fn send(
    function: &CStr,
    topic: Option<&str>,
    payload: &[u8],
    key: Option<&str>,
    kind: Option<&str>,
    headers: Option<JsonText>,
    message_id: Option<Uuid>,
    content_type: &str,
) -> Result<Uuid> {
    let topic = given(topic, "topic")?;
    check_len("the topic", topic, limits::NAME_BYTES)?;
    check_len("the content_type", content_type, limits::NAME_BYTES)?;
    if let Some(key) = key {
        check_len("the key", key, limits::KEY_BYTES)?;
    }
    if let Some(kind) = kind {
        check_len("the type", kind, limits::NAME_BYTES)?;
    }
    let headers = headers.as_ref().map(JsonText::as_str);
    let traceparent = traceparent("the message", headers)?;
    ensure_writable(function);
    let message_id = message_id.map_or_else(uuid::Uuid::now_v7, |id| {
        uuid::Uuid::from_bytes(*id.as_bytes())
    });
    let rings = ring::enter()?;
    outbox::append(
        &rings.outbox,
        std::iter::once(Effect {
            source: None,
            recorded_at: transaction_start(),
            ordinal: 0,
            message_id,
            topic,
            key,
            kind,
            payload,
            content_type,
            headers,
            traceparent: traceparent.as_deref(),
            deliver_after: None,
        }),
    )?;
    count(Counter::EffectSent);
    Ok(Uuid::from_bytes(message_id.into_bytes()))
}
