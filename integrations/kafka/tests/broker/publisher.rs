//! Tests of the Kafka publisher: properties of a published message, and the errors of a failed
//! publish.

use std::time::Duration;

use idem_kafka::KafkaPublisher;
use idem_runtime::{OutgoingMessage, PublishError, Publisher, transport::Coordinates};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as BrokerError};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    mock::{Kafka, PATIENCE, TOPIC, next, numbered, take},
    numbers,
};

#[tokio::test]
async fn published_message_arrives_with_all_properties() {
    let kafka = Kafka::start();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut message = OutgoingMessage::new(Uuid::new_v4(), TOPIC, r#"{"order":4711}"#);
    message.key = Some("customer-7".into());
    message.message_type = Some("OrderPlaced".into());
    message.content_type = Some("application/json".into());
    message.traceparent = Some(traceparent.into());
    message.source_destination = Some("shop.orders".into());
    message.recorded_at = OffsetDateTime::from_unix_timestamp(86_400).unwrap();
    message.headers.insert("text".into(), json!("as it is"));
    message.headers.insert("number".into(), json!(42));
    message
        .headers
        .insert("correlation-id".into(), json!("conversation-1"));
    // A header with the name `message-id` must not replace the real message id.
    message.headers.insert("message-id".into(), json!("forged"));
    kafka.publisher().publish(&message).await.unwrap();

    let mut source = kafka.source();
    let delivery = next(&mut source).await;
    let arrived = delivery.message();
    assert_eq!(arrived.topic(), TOPIC);
    assert_eq!(arrived.payload(), &message.payload.0);
    assert_eq!(arrived.message_id(), Some(&*message.message_id.to_string()));
    assert_eq!(arrived.correlation_id(), Some("conversation-1"));
    assert_eq!(arrived.key(), Some("customer-7"));
    assert_eq!(arrived.message_type(), Some("OrderPlaced"));
    assert_eq!(arrived.content_type(), Some("application/json"));
    // Kafka deletes records by their time, so it is that of the publication.
    let age = OffsetDateTime::now_utc() - arrived.sent_at().unwrap();
    assert!(age.whole_seconds().abs() < 60, "{age}");
    assert_eq!(
        arrived.header("idem-recorded-at"),
        Some("1970-01-02T00:00:00Z")
    );
    assert_eq!(arrived.deliveries(), None);
    assert_eq!(arrived.header("traceparent"), Some(traceparent));
    assert_eq!(
        arrived.header("idem-source-destination"),
        Some("shop.orders")
    );
    assert_eq!(arrived.header("text"), Some("as it is"));
    assert_eq!(arrived.header("number"), Some("42"));
    let coordinates = Coordinates::new(TOPIC, 0, 0);
    assert_eq!(arrived.coordinates(), Some(&coordinates));
}

/// An effect without a key gets its message id as the Kafka key, so such effects are distributed
/// over the partitions.
#[tokio::test]
async fn effect_without_a_key_uses_its_message_id_as_key() {
    let kafka = Kafka::start();
    let mut message = numbered(1);
    message.key = None;
    kafka.publisher().publish(&message).await.unwrap();
    let mut source = kafka.source();
    let id = message.message_id.to_string();
    assert_eq!(next(&mut source).await.message().key(), Some(&*id));
}

/// Publishes one message, for which the broker returns `error` once. Returns the result.
async fn publish_with_error(kafka: &Kafka, error: BrokerError) -> Result<(), PublishError> {
    kafka.mock.request_errors(RDKafkaApiKey::Produce, &[error]);
    kafka.publisher().publish(&numbered(1)).await
}

/// An error about the topic makes the topic unavailable. An error about the message is permanent.
/// librdkafka retries a transient error.
#[tokio::test]
async fn broker_error_selects_the_publish_error() {
    let kafka = Kafka::start();
    let result = publish_with_error(
        &kafka,
        BrokerError::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
    )
    .await;
    assert!(
        matches!(result, Err(PublishError::TopicUnavailable(_))),
        "{result:?}"
    );
    let result = publish_with_error(&kafka, BrokerError::RD_KAFKA_RESP_ERR_INVALID_RECORD).await;
    assert!(
        matches!(result, Err(PublishError::Permanent(_))),
        "{result:?}"
    );
    // librdkafka retries this error itself, so the publish succeeds.
    publish_with_error(&kafka, BrokerError::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS)
        .await
        .unwrap();
}

/// I4: if too few replicas are in sync for longer than librdkafka retries, the topic is
/// unavailable.
#[tokio::test]
async fn i4_lasting_lack_of_replicas_makes_topic_unavailable() {
    let kafka = Kafka::start();
    let config = kafka.config().property("message.timeout.ms", "2000");
    let publisher = KafkaPublisher::new(&config).unwrap();
    let errors = [BrokerError::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 1000];
    kafka.mock.request_errors(RDKafkaApiKey::Produce, &errors);
    let result = publisher.publish(&numbered(1)).await;
    assert!(
        matches!(result, Err(PublishError::TopicUnavailable(_))),
        "{result:?}"
    );
    assert!(format!("{result:?}").contains(TOPIC), "{result:?}");
    kafka.mock.clear_request_errors(RDKafkaApiKey::Produce);
    publisher.publish(&numbered(2)).await.unwrap();
}

/// I10: who may record an effect does not write into the topics of the cluster.
#[tokio::test]
async fn i10_topic_of_the_cluster_is_a_permanent_failure() {
    let kafka = Kafka::start();
    let message = OutgoingMessage::new(Uuid::new_v4(), "__consumer_offsets", "x");
    let result = kafka.publisher().publish(&message).await;
    assert!(
        matches!(result, Err(PublishError::Permanent(_))),
        "{result:?}"
    );
}

#[tokio::test]
async fn too_large_message_fails_permanently() {
    let kafka = Kafka::start();
    let message = OutgoingMessage::new(Uuid::new_v4(), TOPIC, vec![0; 2_000_000]);
    let result = kafka.publisher().publish(&message).await;
    assert!(
        matches!(result, Err(PublishError::Permanent(_))),
        "{result:?}"
    );
}

#[tokio::test]
async fn unknown_topic_is_unavailable_until_it_exists() {
    let kafka = Kafka::start();
    let unknown = BrokerError::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    kafka.mock.topic_error("nowhere", unknown).unwrap();
    let mut message = numbered(1);
    message.topic = "nowhere".into();
    let publisher = kafka.publisher();
    let result = publisher.publish(&message).await;
    assert!(
        matches!(result, Err(PublishError::TopicUnavailable(_))),
        "{result:?}"
    );
    kafka
        .mock
        .topic_error("nowhere", BrokerError::RD_KAFKA_RESP_ERR_NO_ERROR)
        .unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = publisher.publish(&message).await {
        assert!(
            matches!(error, PublishError::TopicUnavailable(_)),
            "{error:?}"
        );
        assert!(tokio::time::Instant::now() < deadline, "{error:?}");
    }
}

#[tokio::test]
async fn check_fails_while_the_cluster_is_down() {
    let kafka = Kafka::start();
    let publisher = kafka.publisher();
    publisher.check().await.unwrap();
    kafka.mock.broker_down(-1).unwrap();
    let result = publisher.check().await;
    assert!(
        matches!(result, Err(PublishError::Unavailable(_))),
        "{result:?}"
    );
}

#[tokio::test]
async fn stopped_broker_is_unavailable_until_it_starts() {
    let kafka = Kafka::start();
    let config = kafka.config().property("message.timeout.ms", "2000");
    let publisher = KafkaPublisher::new(&config).unwrap();
    publisher.publish(&numbered(0)).await.unwrap();
    kafka.mock.broker_down(-1).unwrap();
    let result = publisher.publish(&numbered(1)).await;
    assert!(
        matches!(result, Err(PublishError::Unavailable(_))),
        "{result:?}"
    );

    kafka.mock.broker_up(-1).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = publisher.publish(&numbered(1)).await {
        assert!(matches!(error, PublishError::Unavailable(_)), "{error:?}");
        assert!(tokio::time::Instant::now() < deadline, "{error:?}");
    }
    let mut source = kafka.source();
    assert_eq!(numbers(&take(&mut source, 2).await), [0, 1]);
}

/// A publish fails with `Unavailable` while the send queue of librdkafka is full.
#[tokio::test]
async fn full_producer_queue_is_unavailable() {
    let kafka = Kafka::start();
    let config = kafka.config().property("queue.buffering.max.messages", "1");
    let publisher = KafkaPublisher::new(&config).unwrap();
    kafka
        .mock
        .broker_round_trip_time(-1, Duration::from_millis(500))
        .unwrap();
    let (one, two) = (numbered(1), numbered(2));
    let (first, second) = tokio::join!(publisher.publish(&one), publisher.publish(&two));
    assert!(first.is_ok(), "{first:?}");
    assert!(
        matches!(second, Err(PublishError::Unavailable(_))),
        "{second:?}"
    );
}

#[tokio::test]
async fn producer_with_a_fatal_error_is_replaced() {
    let kafka = Kafka::start();
    let error = BrokerError::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    kafka
        .mock
        .request_errors(RDKafkaApiKey::InitProducerId, &[error]);
    let publisher = kafka.publisher();
    let result = publisher.publish(&numbered(1)).await;
    assert!(
        matches!(result, Err(PublishError::Unavailable(_))),
        "{result:?}"
    );
    publisher.publish(&numbered(1)).await.unwrap();
}
