//! The place of messages that are rejected.

use rdkafka::{
    error::KafkaError,
    message::{Header, Headers as _, OwnedHeaders},
    producer::FutureRecord,
};

use super::{DeadLetter, KafkaConfig, incoming::Record, ledger::Ticket, producer::Producer};
use crate::{TransportError, brokers::headers};

/// Where a dead letter came from, as `topic/partition/offset`.
const SOURCE: &str = "idem-dead-letter-source";

/// Takes what is rejected.
pub(super) enum DeadLetters {
    Topic { topic: String, producer: Box<Producer> },
    Discard,
}

impl DeadLetters {
    pub(super) fn new(config: &KafkaConfig, choice: &DeadLetter) -> Result<Self, TransportError> {
        Ok(match choice {
            DeadLetter::Discard => Self::Discard,
            DeadLetter::Topic(topic) => Self::Topic {
                topic: topic.clone(),
                producer: Box::new(Producer::new(config)?),
            },
        })
    }

    /// Answers when the record is where it belongs, and its offset may be settled.
    pub(super) async fn take(&self, ticket: &Ticket, record: &Record, reason: &str) -> Result<(), KafkaError> {
        let (place, offset) = (&ticket.place, ticket.offset);
        let Self::Topic { topic, producer } = self else {
            tracing::warn!(
                topic = place.topic,
                partition = place.partition,
                offset,
                reason,
                "a rejected message is discarded"
            );
            return Ok(());
        };
        let source = format!("{}/{}/{offset}", place.topic, place.partition);
        let mut letter = FutureRecord::<[u8], [u8]>::to(topic).headers(headers_of(record, &source, reason));
        if let Some(key) = &record.key {
            letter = letter.key(key);
        }
        if let Some(payload) = &record.payload {
            letter = letter.payload(payload);
        }
        producer.send(letter).await
    }
}

fn headers_of(record: &Record, source: &str, reason: &str) -> OwnedHeaders {
    let added = [(headers::DEAD_LETTER_REASON, reason), (SOURCE, source)];
    let all = record.headers.iter().flat_map(|headers| headers.iter());
    // Those of an earlier death are out of date.
    let kept = all.filter(|header| added.iter().all(|(name, _)| *name != header.key));
    let headers = kept.fold(OwnedHeaders::new(), |headers, header| headers.insert(header));
    added.into_iter().fold(headers, |headers, (key, value)| {
        headers.insert(Header { key, value: Some(value) })
    })
}
