//! Publishes rejected records to the dead-letter topic.

use idem_runtime::transport::{TransportError, headers};
use rdkafka::{
    message::{Header, Headers as _, OwnedHeaders},
    producer::FutureRecord,
};

use super::{DeadLetter, KafkaConfig, incoming::Record, ledger::Ticket, producer::Producer};

/// The header with the origin of a dead letter, as `topic/partition/offset`.
const SOURCE: &str = "idem-dead-letter-source";

const NO_DEAD_LETTER_TOPIC: &str = "the subscription names no dead-letter topic: keep the message \
    with deadletters::reject and acknowledge it, or set dead_letter";

/// The dead-letter topic of the subscription, and its producer. Without such a topic the consumer
/// keeps a rejected message in the database before it settles the record.
pub(super) struct DeadLetters(Option<(String, Producer)>);

impl DeadLetters {
    pub(super) fn new(config: &KafkaConfig, choice: &DeadLetter) -> Result<Self, TransportError> {
        Ok(Self(match choice {
            DeadLetter::Database => None,
            DeadLetter::Topic(topic) => Some((topic.clone(), Producer::new(config)?)),
        }))
    }

    /// Publishes a rejected record. Returns when its offset may be settled.
    pub(super) async fn take(
        &self,
        ticket: &Ticket,
        record: &Record,
        reason: &str,
    ) -> Result<(), TransportError> {
        let (place, offset) = (&ticket.place, ticket.offset);
        let Some((topic, producer)) = &self.0 else {
            return Err(NO_DEAD_LETTER_TOPIC.into());
        };
        let source = format!("{}/{}/{offset}", place.topic, place.partition);
        let mut letter =
            FutureRecord::<[u8], [u8]>::to(topic).headers(headers_of(record, &source, reason));
        if let Some(key) = &record.key {
            letter = letter.key(key);
        }
        if let Some(payload) = &record.payload {
            letter = letter.payload(payload);
        }
        Ok(producer.send(letter).await?)
    }

    /// Returns whether the subscription names a dead-letter topic.
    pub(super) fn are_named(&self) -> bool {
        self.0.is_some()
    }
}

fn headers_of(record: &Record, source: &str, reason: &str) -> OwnedHeaders {
    let added = [(headers::DEAD_LETTER_REASON, reason), (SOURCE, source)];
    let all = record.headers.iter().flat_map(|headers| headers.iter());
    // Headers of an earlier dead letter are out of date, so leave them out.
    let kept = all.filter(|header| added.iter().all(|(name, _)| *name != header.key));
    let headers = kept.fold(OwnedHeaders::new(), |headers, header| {
        headers.insert(header)
    });
    added.into_iter().fold(headers, |headers, (key, value)| {
        headers.insert(Header {
            key,
            value: Some(value),
        })
    })
}
