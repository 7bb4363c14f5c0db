//! Converts messages to NATS subjects, headers and payloads, and back.

use std::collections::BTreeMap;

use async_nats::{HeaderMap, HeaderName, HeaderValue, jetstream};
use idem_runtime::{
    Message, OutgoingMessage,
    transport::{Coordinates, TransportError, headers},
};

/// The header by which a stream recognizes duplicates within its time window for duplicates.
pub(super) const NATS_MESSAGE_ID: &str = "Nats-Msg-Id";

/// Returns the headers of an effect. Fails if NATS cannot transport a header's name or value, for
/// example a colon in a name or a line break.
pub(super) fn outgoing(message: &OutgoingMessage) -> Result<HeaderMap, TransportError> {
    let id = message.message_id.to_string();
    let own = [
        (NATS_MESSAGE_ID, Some(id.as_str())),
        (headers::KEY, message.key.as_deref()),
        (headers::MESSAGE_TYPE, message.message_type.as_deref()),
        (headers::CONTENT_TYPE, message.content_type.as_deref()),
    ];
    let mut map = HeaderMap::new();
    for (name, value) in headers::outgoing(message, &own) {
        insert(&mut map, name, &headers::text(&value))?;
    }
    Ok(map)
}

pub(super) fn insert(map: &mut HeaderMap, name: &str, value: &str) -> Result<(), TransportError> {
    map.insert(name.parse::<HeaderName>()?, value.parse::<HeaderValue>()?);
    Ok(())
}

/// Returns a message of a stream, with its place in the stream and the time when the stream stored
/// it.
pub(super) fn incoming(message: &jetstream::Message) -> Result<Message, TransportError> {
    let info = message.info()?;
    let coordinates = Coordinates::new(info.stream, 0, i64::try_from(info.stream_sequence)?);
    let headers: BTreeMap<_, _> = message
        .headers
        .iter()
        .flat_map(HeaderMap::iter)
        .filter_map(|(name, values)| Some((name.to_string(), values.last()?.to_string())))
        .collect();
    let id = headers.get(NATS_MESSAGE_ID).cloned();
    let read = headers::incoming(message.subject.as_str(), message.payload.clone(), headers);
    let read = match id {
        // A dead letter has the header `message-id`, because its `Nats-Msg-Id` is not the id of the
        // message.
        Some(id) if read.message_id().is_none() => read.with_message_id(id),
        _ => read,
    };
    Ok(read
        .with_coordinates(coordinates)
        .with_deliveries(u32::try_from(info.delivered)?)
        .with_sent_at(info.published))
}

/// Returns the headers of a dead letter: the headers of the rejected message, and the reason. The
/// headers of NATS itself are left out. Otherwise the stream could refuse the letter, because it
/// does not meet a condition such as `Nats-Expected-Last-Sequence`, or delete it after a `Nats-TTL`.
///
/// The stream that takes the dead letter can be the stream of the message. This stream would drop a
/// letter with the message's id as a duplicate. So the `Nats-Msg-Id` of the letter is made from the
/// message's place and its consumer: a letter is a duplicate only if the same consumer rejects the
/// same message again.
pub(super) fn dead_letter(
    message: &Message,
    consumer: &str,
    reason: &str,
) -> Result<HeaderMap, TransportError> {
    let mut map = HeaderMap::new();
    for (name, value) in message.headers() {
        if !name.to_ascii_lowercase().starts_with("nats-") {
            insert(&mut map, name, value)?;
        }
    }
    if let Some(id) = message.message_id() {
        insert(&mut map, headers::MESSAGE_ID, id)?;
    }
    if let Some(at) = message.coordinates() {
        insert(
            &mut map,
            NATS_MESSAGE_ID,
            &format!("dead.{}.{consumer}.{}", at.topic, at.offset),
        )?;
    }
    insert(
        &mut map,
        headers::DEAD_LETTER_REASON,
        &reason.replace(['\r', '\n'], " "),
    )?;
    Ok(map)
}
