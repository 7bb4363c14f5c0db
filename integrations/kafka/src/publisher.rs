//! The publisher: sends effects as Kafka records.

use idem_runtime::{
    OutgoingMessage, PublishError, Publisher,
    transport::{TransportError, check_topic, headers},
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
/// `message-type`, `content-type`, `traceparent`, `idem-source-destination`, `idem-recorded-at`, and
/// the headers of the effect. A header that is not a string is sent as JSON. The timestamp of the
/// record is the time of its publication, because Kafka deletes records by their timestamp.
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
    system_topics: bool,
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
            system_topics: config.system_topics,
        })
    }
}

impl Publisher for KafkaPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        check_topic(&message.topic, &["__"], self.system_topics)?;
        let id = message.message_id.to_string();
        let record = FutureRecord::<[u8], [u8]>::to(&message.topic)
            .key(message.key.as_ref().unwrap_or(&id).as_bytes())
            .payload(&*message.payload)
            .headers(headers_of(message, &id));
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
    ];
    let headers = headers::outgoing(message, &own).into_iter();
    headers.fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header {
            key,
            value: Some(&headers::text(&value)),
        })
    })
}
