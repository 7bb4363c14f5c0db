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

/// The treatment of rejected messages.
pub(super) enum DeadLetters {
    /// The source publishes the record to this topic.
    Topic {
        topic: String,
        producer: Box<Producer>,
    },
    /// The consumer keeps the message in the database before it settles the record.
    Database,
}

impl DeadLetters {
    pub(super) fn new(config: &KafkaConfig, choice: &DeadLetter) -> Result<Self, TransportError> {
        Ok(match choice {
            DeadLetter::Database => Self::Database,
            DeadLetter::Topic(topic) => Self::Topic {
                topic: topic.clone(),
                producer: Box::new(Producer::new(config)?),
            },
        })
    }

    /// Publishes a rejected record. Returns when its offset may be settled.
    pub(super) async fn take(
        &self,
        ticket: &Ticket,
        record: &Record,
        reason: &str,
    ) -> Result<(), TransportError> {
        let (place, offset) = (&ticket.place, ticket.offset);
        let (topic, producer) = match self {
            Self::Topic { topic, producer } => (topic, producer),
            Self::Database => return Err(NO_DEAD_LETTER_TOPIC.into()),
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

    /// Returns whether the subscription sets a treatment of rejected messages other than the
    /// database.
    pub(super) fn are_named(&self) -> bool {
        !matches!(self, Self::Database)
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
