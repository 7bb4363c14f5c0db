//! The functions that record, read and send effects (sql/api/effects.sql).

use super::claim::checked;
use super::{Report, text_id, uuids};
use crate::claim::{Outcome, Terms, claim, held};
use crate::effects::{parse, parse_each, record, record_each, recorded, replay, send};
use crate::errors::{Error, Result, given};
use crate::outbox::{Effect, column};
use crate::pg::{ensure_writable, return_rows, transaction_start};
use crate::ring;
use crate::settings::check_payload;
use crate::sql_types::JsonText;
use idem_core::{JSON, OCTETS, check_destination, check_len, limits, traceparent};
use pgrx::prelude::*;
use pgrx::{Array, Uuid, pg_sys};
use std::ffi::CStr;

overloads! {
    fn idem_record_effects | idem_record_effects_uuid(
        id,
        destination: Option<&str>,
        effects: Option<JsonText>
    ) -> Report<Vec<Uuid>> {
        let destination = given(destination, "destination")?;
        let effects = given(effects, "effects")?;
        let effects = parse(&effects)?;
        ensure_writable(c"idem_record_effects()");
        check_destination(destination).map_err(Error::from)?;
        let rings = ring::enter()?;
        Ok(uuids(record(&held(id, destination, &rings)?, &effects)?))
    }
}

#[pg_extern(sql = false)]
fn idem_record_effects_batch(
    ids: Option<Array<&str>>,
    destination: Option<&str>,
    effects: Option<JsonText>,
) -> Report<Vec<Uuid>> {
    let ids = given(ids, "ids")?;
    let destination = given(destination, "destination")?;
    let effects = given(effects, "effects")?;
    let ids = checked(ids.len(), ids.iter().map(text_id))?;
    let effects = parse_each(&effects, ids.len())?;
    ensure_writable(c"idem_record_effects_batch()");
    check_destination(destination).map_err(Error::from)?;
    let rings = ring::enter()?;
    let count = effects.iter().map(Vec::len).sum();
    let messages = ids
        .into_iter()
        .zip(&effects)
        .map(|(id, effects)| Ok((held(id, destination, &rings)?, effects.as_slice())));
    Ok(uuids(record_each(messages, count, &rings)?))
}

overloads! {
    fn idem_try_record | idem_try_record_uuid(
        id,
        destination: Option<&str>,
        effects: Option<JsonText>
    ) -> Report<bool> {
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
}

/// The columns of the outbox that `idem_effect` has.
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

overloads! {
    fn idem_effects_text | idem_effects_uuid(
        id,
        destination: Option<&str>,
        fcinfo: pg_sys::FunctionCallInfo
    ) -> Report<()> {
        let rows = recorded(id, given(destination, "destination")?)?;
        let rows = rows
            .iter()
            .map(|row| COLUMNS.map(|number| row[number as usize - 1]));
        return_rows(fcinfo, rows);
        Ok(())
    }
}

overloads! {
    fn idem_replay_effects | idem_replay_effects_uuid(
        id,
        destination: Option<&str>
    ) -> Report<i32> {
        let destination = given(destination, "destination")?;
        ensure_writable(c"idem_replay_effects()");
        Ok(replay(id, destination)? as i32)
    }
}

#[pg_extern(sql = false)]
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
    Ok(send_message(
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

#[pg_extern(sql = false)]
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
    Ok(send_message(
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
fn send_message(
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
    check_payload(payload.len())?;
    ensure_writable(function);
    let message_id = message_id.map_or_else(uuid::Uuid::now_v7, |id| {
        uuid::Uuid::from_bytes(*id.as_bytes())
    });
    send(&Effect {
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
    })?;
    Ok(Uuid::from_bytes(message_id.into_bytes()))
}
