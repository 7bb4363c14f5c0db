//! Sends messages that do not result from another message, so they need no claim.

use crate::errors::Result;
use crate::outbox::{Appending, Effect};
use crate::pg::transaction_start;
use crate::ring;
use crate::stats::{Counter, count};
use uuid::Uuid;

/// A message that the caller sends.
pub struct Sent<'a> {
    pub message_id: Uuid,
    pub topic: &'a str,
    pub key: Option<&'a str>,
    pub kind: Option<&'a str>,
    pub payload: &'a [u8],
    pub content_type: &'a str,
    /// The text of a JSON object.
    pub headers: Option<&'a str>,
    pub traceparent: Option<&'a str>,
}

/// Appends a message to the outbox.
pub fn send(message: &Sent) -> Result<()> {
    let rings = ring::enter()?;
    let mut outbox = Appending::new(&rings.outbox)?;
    outbox.append(&Effect {
        source: None,
        recorded_at: transaction_start(),
        ordinal: 0,
        message_id: message.message_id,
        topic: message.topic,
        key: message.key,
        kind: message.kind,
        payload: message.payload,
        content_type: message.content_type,
        headers: message.headers,
        traceparent: message.traceparent,
        deliver_after: None,
    })?;
    outbox.finish();
    count(Counter::EffectSent);
    Ok(())
}
