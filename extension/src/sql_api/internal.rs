//! The functions for the extension's own SQL about destinations and pending messages
//! (sql/internal/functions.sql). They use the same caches and look-ups as claims.

use super::{Report, text_id};
use crate::claim::held;
use crate::destination::{find, intern};
use crate::effects::record;
use crate::errors::{Result, given, invalid};
use crate::identity::ensure_same_id;
use crate::pending::{presence, tables};
use crate::pg::{self, ensure_writable};
use crate::ring;
use crate::settings;
use crate::sql_types::JsonText;
use crate::wake;
use idem_core::limits::{LARGEST_PAYLOAD_BYTES, MAX_ATTEMPTS};
use idem_core::{EffectSpec, Failure, PayloadSpec, is_last_failure, memory, note_failure};
use pgrx::Uuid;
use pgrx::prelude::*;
use std::borrow::Cow;

#[pg_extern(sql = false)]
fn key_of(id: Option<&str>) -> Report<Uuid> {
    Ok(Uuid::from_bytes(*text_id(id)?.key.bytes()))
}

/// Checks a row that SQL found under the key of an id. `row_key` is null if there is no row.
#[pg_extern(sql = false)]
fn check_same_id(
    row_key: Option<Uuid>,
    row_id: Option<&str>,
    id: Option<&str>,
    destination: Option<&str>,
) -> Report<()> {
    if row_key.is_some() {
        ensure_same_id(row_id, &text_id(id)?, given(destination, "destination")?)?;
    }
    Ok(())
}

#[pg_extern(sql = false)]
fn truncated_error(error: Option<&str>) -> Option<&str> {
    error.map(idem_core::truncated_error)
}

#[pg_extern(sql = false)]
fn check_payload(bytes: Option<i64>) -> Report<()> {
    let bytes = given(bytes, "bytes")?;
    Ok(settings::check_payload(
        usize::try_from(bytes).unwrap_or_default(),
    )?)
}

#[pg_extern(sql = false)]
fn largest_payload() -> i64 {
    LARGEST_PAYLOAD_BYTES as i64
}

#[pg_extern(sql = false)]
fn find_destination(name: Option<&str>) -> Report<Option<i32>> {
    let name = given(name, "destination")?;
    ring::look()?;
    Ok(find(name)?.map(|destination| destination.id))
}

#[pg_extern(sql = false)]
fn intern_destination(name: Option<&str>) -> Report<i32> {
    let name = given(name, "destination")?;
    ensure_writable(c"idem.intern_destination()");
    Ok(intern(name, &ring::enter()?)?.id)
}

#[pg_extern(sql = false)]
fn enter_pending() -> Report<i32> {
    // Enter the rings, because the caller may write a payload: the fence of a rotation of payloads
    // waits for each transaction that has entered the rings.
    tables::current(&ring::enter()?)?;
    Ok(ring::refreshed()?.pending_number() as i32)
}

#[pg_extern(sql = false)]
fn note_pending(_seq: Option<i64>) -> bool {
    presence::note();
    true
}

#[pg_extern(sql = false)]
fn pending_presence() -> &'static str {
    presence::name()
}

#[pg_extern(sql = false)]
fn set_pending_presence(note: Option<&str>) -> Report<()> {
    match given(note, "note")? {
        "quiet" => presence::set_quiet(),
        "none" => presence::set_none(),
        other => invalid(format!("note is \"{other}\""), "Give quiet or none.")?,
    }
    Ok(())
}

#[pg_extern(sql = false)]
fn wake_consumers() {
    wake::wake_consumers();
}

#[pg_extern(sql = false)]
fn default_max_attempts() -> i32 {
    MAX_ATTEMPTS
}

#[pg_extern(sql = false)]
fn note_failure_sql(
    errors: Option<JsonText>,
    attempt: Option<i32>,
    error: Option<&str>,
    is_final: Option<bool>,
) -> Report<String> {
    let failure = Failure::Reported {
        error: given(error, "error")?,
        is_final: given(is_final, "final")?,
    };
    note(errors, attempt, failure)
}

#[pg_extern(sql = false)]
fn note_expired_lease(errors: Option<JsonText>, attempt: Option<i32>) -> Report<String> {
    note(errors, attempt, Failure::LeaseExpired)
}

fn note(errors: Option<JsonText>, attempt: Option<i32>, failure: Failure) -> Report<String> {
    Ok(note_failure(
        given(errors, "errors")?.as_str(),
        pg::now_unix(),
        given(attempt, "attempt")?,
        failure,
    ))
}

#[pg_extern(sql = false)]
fn is_last_failure_sql(
    errors: Option<JsonText>,
    attempt: Option<i32>,
    error: Option<&str>,
) -> Report<bool> {
    Ok(is_last_failure(
        given(errors, "errors")?.as_str(),
        given(attempt, "attempt")?,
        given(error, "error")?,
    ))
}

/// Records a dead letter as an effect of its message. The limits of [`idem_core::parse_effects`] do
/// not apply, because a message that a broker delivered is stored and sent unchanged.
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments)]
fn record_letter(
    id: Option<&str>,
    destination: Option<&str>,
    topic: Option<&str>,
    payload: Option<&[u8]>,
    key: Option<&str>,
    kind: Option<&str>,
    headers: Option<JsonText>,
    traceparent: Option<&str>,
    content_type: Option<&str>,
) -> Report<Option<Uuid>> {
    let effect = EffectSpec {
        payload: PayloadSpec::Bytes(copy(given(payload, "payload")?)?),
        topic: Cow::Borrowed(given(topic, "topic")?),
        content_type: Cow::Borrowed(given(content_type, "content_type")?),
        key: key.map(Cow::Borrowed),
        kind: kind.map(Cow::Borrowed),
        headers: headers.as_ref().map(JsonText::as_str),
        traceparent: traceparent.map(str::to_owned),
        message_id: None,
        deliver_after: None,
    };
    ensure_writable(c"idem_forward()");
    let (id, destination) = (text_id(id)?, given(destination, "destination")?);
    let rings = ring::enter()?;
    let message_ids = record(&held(id, destination, &rings)?, &[effect])?;
    Ok(message_ids
        .first()
        .map(|id| Uuid::from_bytes(*id.as_bytes())))
}

fn copy(payload: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = memory::reserve(payload.len())?;
    bytes.extend_from_slice(payload);
    Ok(bytes)
}
