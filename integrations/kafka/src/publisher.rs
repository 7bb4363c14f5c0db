//! The publisher: sends effects as Kafka records.

use idem_runtime::{
    OutgoingMessage, PublishError, Publisher,
    transport::{TransportError, headers},
};
use rdkafka::{
    error::RDKafkaErrorCode,
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};

use super::{KafkaConfig, producer::Producer};
use crate::errors::publish_error;

/// Publishes effects to Kafka.
///
/// The topic of an effect is the Kafka topic. An effect is published when all in-sync replicas have
/// confirmed its record.
///
/// The key of the record is the key of the effect, or the message id if the effect has no key.
/// Effects of one key are in one partition and keep their order. The headers are `message-id`,
/// `message-type`, `content-type`, `traceparent`, `idem-source-destination`, and the headers of the
/// effect. A header that is not a string is sent as JSON. The timestamp of the record is the time
/// when the effect was recorded.
///
/// The producer is idempotent, so its own retries write no duplicates. But a relay that crashed can
/// cause duplicates. Kafka does not recognize duplicates by message id, so consumers must claim by
/// message id.
///
/// # Errors
///
/// - [`PublishError::TopicUnavailable`]: the topic does not exist, a permission is missing, too few
///   replicas are in sync, or an available cluster did not confirm the record in time.
/// - [`PublishError::Permanent`]: Kafka will never accept the effect, for example because of its
///   size.
/// - [`PublishError::Rejected`]: any other error that concerns the effect.
/// - [`PublishError::Unavailable`]: the cluster cannot be reached or cannot store records now.
pub struct KafkaPublisher {
    producer: Producer,
}

impl KafkaPublisher {
    /// Returns a publisher, which connects in the background.
    ///
    /// # Errors
    ///
    /// A property of librdkafka is not valid.
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
            .payload(&*message.payload)
            .headers(headers_of(message, &id));
        if let Ok(recorded_ms) = i64::try_from(recorded_ms) {
            record = record.timestamp(recorded_ms);
        }
        match self.producer.send(record).await {
            Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageTimedOut) => {
                Err(self.producer.unconfirmed(&message.topic, error).await)
            }
            sent => sent.map_err(publish_error),
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
