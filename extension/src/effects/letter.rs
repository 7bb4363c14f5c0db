//! Forwards a dead letter as an effect of its message.

use super::record::record;
use crate::claim::{held, text_id};
use crate::errors::{Result, given};
use crate::pg::ensure_writable;
use crate::ring;
use crate::sql_types::JsonText;
use idem_core::{EffectSpec, PayloadSpec, memory};
use pgrx::Uuid;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::borrow::Cow;

/// Records the dead letter as an effect of its message, which this transaction has claimed.
///
/// The limits of [`idem_core::parse_effects`] do not apply, because a message that a broker
/// delivered is stored and sent unchanged.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.record_letter(
    id text, destination text, topic text, payload bytea, key text, type text, headers jsonb,
    traceparent text, content_type text
) RETURNS uuid
LANGUAGE c AS 'MODULE_PATHNAME', 'record_letter_wrapper';
"#
)]
#[allow(clippy::too_many_arguments)]
pub fn record_letter(
    id: Option<&str>,
    destination: Option<&str>,
    topic: Option<&str>,
    payload: Option<&[u8]>,
    key: Option<&str>,
    kind: Option<&str>,
    headers: Option<JsonText>,
    traceparent: Option<&str>,
    content_type: Option<&str>,
) -> std::result::Result<Option<Uuid>, ErrorReport> {
    let bytes = copy(given(payload, "payload")?)?;
    let effect = EffectSpec {
        topic: Cow::Borrowed(given(topic, "topic")?),
        payload: PayloadSpec::Bytes(bytes),
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
