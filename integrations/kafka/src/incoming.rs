//! Converts a Kafka record to a message.

use bytes::Bytes;
use idem_runtime::{
    Message,
    transport::{Coordinates, headers},
};
use rdkafka::{
    Message as _, Timestamp,
    message::{BorrowedMessage, Headers as _, OwnedHeaders},
};
use time::OffsetDateTime;

/// The parts of a record that a [`Message`] cannot represent exactly: bytes that are not text, and
/// headers that occur more than once. A dead letter is published with these original parts.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) key: Option<Vec<u8>>,
    /// The payload. A record without a payload deletes its key from a compacted topic. A record
    /// with an empty payload does not.
    pub(super) payload: Option<Bytes>,
    pub(super) headers: Option<OwnedHeaders>,
}

impl Record {
    /// Returns the size of the key, the payload and the headers.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.iter().flat_map(|headers| headers.iter());
        let headers = headers.map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len));
        let key = self.key.as_ref().map_or(0, Vec::len);
        key + self.payload.as_ref().map_or(0, Bytes::len) + headers.sum::<usize>()
    }
}

/// Copies a record out of the memory of the client, and returns it also as a message.
pub(super) fn read(borrowed: &BorrowedMessage<'_>) -> (Message, Record) {
    let record = Record {
        key: borrowed.key().map(<[u8]>::to_vec),
        payload: borrowed.payload().map(Bytes::copy_from_slice),
        headers: borrowed.headers().map(|headers| headers.detach()),
    };
    let all = record.headers.iter().flat_map(|headers| headers.iter());
    let texts =
        all.filter_map(|header| Some((header.key.to_owned(), headers::bytes(header.value?))));
    let payload = record.payload.clone().unwrap_or_default();
    let mut message =
        headers::incoming(borrowed.topic(), payload, texts.collect()).with_coordinates(
            Coordinates::new(borrowed.topic(), borrowed.partition(), borrowed.offset()),
        );
    if let Some(key) = &record.key {
        message = message.with_key(headers::bytes(key));
    }
    // Only `CreateTime` is the time when the record was sent. `LogAppendTime` is the time when the
    // broker stored it.
    if let Timestamp::CreateTime(ms) = borrowed.timestamp()
        && let Ok(sent_at) = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
    {
        message = message.with_sent_at(sent_at);
    }
    (message, record)
}
