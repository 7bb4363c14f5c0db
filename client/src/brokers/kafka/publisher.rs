//! Effects as Kafka records.

use rdkafka::{
    error::RDKafkaErrorCode,
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};

use super::{KafkaConfig, producer::Producer};
use crate::{OutgoingMessage, PublishError, Publisher, TransportError, brokers::headers};

/// Publishes effects to Kafka: each to the topic that it names, confirmed by all in-sync replicas.
///
/// The record's key is the effect's, or its message id: effects of one key share a partition and
/// keep their order. Headers are `message-id`, `message-type`, `content-type`, `traceparent`,
/// `idem-source-destination`, and those of the effect; a header that is no string travels as JSON.
/// The record's time is that of the recording.
///
/// A topic that does not exist, a missing permission, and a topic whose records are not confirmed
/// in time by a cluster that serves, are [`PublishError::TopicUnavailable`].
///
/// The producer is idempotent, so its own retries leave no duplicates. Those of a relay that died
/// do, and Kafka does not dedup by message id: consumers claim by it.
pub struct KafkaPublisher {
    producer: Producer,
}

impl KafkaPublisher {
    /// Connects in the background. An error is a property that librdkafka does not take.
    pub fn new(config: &KafkaConfig) -> Result<Self, TransportError> {
        Ok(Self {
            producer: Producer::new(config)?,
        })
    }
}

impl Publisher for KafkaPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let id = message.message_id.to_string();
        let recorded_ms = message.recorded_at.unix_timestamp_nanos() / 1_000_000;
        let mut record = FutureRecord::<[u8], [u8]>::to(&message.topic)
            .key(message.key.as_ref().unwrap_or(&id).as_bytes())
            .payload(&message.payload)
            .headers(headers_of(message, &id));
        if let Ok(recorded_ms) = i64::try_from(recorded_ms) {
            record = record.timestamp(recorded_ms);
        }
        match self.producer.send(record).await {
            Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageTimedOut) => {
                Err(self.producer.unconfirmed(&message.topic, error).await)
            }
            sent => Ok(sent?),
        }
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.producer.check().await
    }
}

fn headers_of(message: &OutgoingMessage, id: &str) -> OwnedHeaders {
    let own = [
        (headers::MESSAGE_ID, Some(id)),
        (headers::MESSAGE_TYPE, message.message_type.as_deref()),
        (headers::CONTENT_TYPE, message.content_type.as_deref()),
        (headers::TRACEPARENT, message.traceparent.as_deref()),
        (
            headers::SOURCE_DESTINATION,
            message.source_destination.as_deref(),
        ),
    ];
    headers::outgoing(message, &own).fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header {
            key,
            value: Some(&value),
        })
    })
}
