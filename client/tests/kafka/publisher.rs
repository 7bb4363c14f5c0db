//! What goes in comes out, and what does not go in says why.

use std::time::Duration;

use idem_client::{Coordinates, KafkaPublisher, OutgoingMessage, PublishError, Publisher};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Refusal};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Kafka, TOPIC, next, numbered};

#[tokio::test]
async fn a_message_arrives_with_all_its_properties() {
    let kafka = Kafka::start();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut message = OutgoingMessage::new(Uuid::new_v4(), TOPIC, r#"{"order":4711}"#);
    message.key = Some("customer-7".into());
    message.message_type = Some("OrderPlaced".into());
    message.content_type = Some("application/json".into());
    message.traceparent = Some(traceparent.into());
    message.source_destination = Some("shop.orders".into());
    message.recorded_at = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
    message.headers.insert("text".into(), json!("as it is"));
    message.headers.insert("number".into(), json!(42));
    message
        .headers
        .insert("correlation-id".into(), json!("conversation-1"));
    // Nobody can take the place of the real one.
    message.headers.insert("message-id".into(), json!("forged"));
    kafka.publisher().publish(&message).await.unwrap();

    let mut source = kafka.source();
    let delivery = next(&mut source).await;
    let arrived = delivery.message();
    assert_eq!(arrived.topic(), TOPIC);
    assert_eq!(arrived.payload(), &message.payload);
    assert_eq!(arrived.message_id(), Some(&*message.message_id.to_string()));
    assert_eq!(arrived.correlation_id(), Some("conversation-1"));
    assert_eq!(arrived.key(), Some("customer-7"));
    assert_eq!(arrived.message_type(), Some("OrderPlaced"));
    assert_eq!(arrived.content_type(), Some("application/json"));
    assert_eq!(arrived.sent_at(), Some(message.recorded_at));
    assert_eq!(arrived.deliveries(), Some(1));
    assert_eq!(arrived.header("traceparent"), Some(traceparent));
    assert_eq!(
        arrived.header("idem-source-destination"),
        Some("shop.orders")
    );
    assert_eq!(arrived.header("text"), Some("as it is"));
    assert_eq!(arrived.header("number"), Some("42"));
    let place = Coordinates {
        topic: TOPIC.into(),
        partition: 0,
        offset: 0,
    };
    assert_eq!(arrived.coordinates(), Some(&place));
}

#[tokio::test]
async fn an_effect_without_a_key_is_spread_by_its_message_id() {
    let kafka = Kafka::start();
    let mut message = numbered(1);
    message.key = None;
    kafka.publisher().publish(&message).await.unwrap();
    let mut source = kafka.source();
    let id = message.message_id.to_string();
    assert_eq!(next(&mut source).await.message().key(), Some(&*id));
}

/// What one publisher makes of one refusal of the broker.
async fn refused_with(kafka: &Kafka, refusal: Refusal) -> Result<(), PublishError> {
    kafka
        .mock
        .request_errors(RDKafkaApiKey::Produce, &[refusal]);
    kafka.publisher().publish(&numbered(1)).await
}

#[tokio::test]
async fn what_a_broker_refuses_is_told_apart() {
    let kafka = Kafka::start();
    let refused = refused_with(
        &kafka,
        Refusal::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
    )
    .await;
    assert!(
        matches!(refused, Err(PublishError::TopicUnavailable(_))),
        "{refused:?}"
    );
    let refused = refused_with(&kafka, Refusal::RD_KAFKA_RESP_ERR_INVALID_RECORD).await;
    assert!(
        matches!(refused, Err(PublishError::Permanent(_))),
        "{refused:?}"
    );
    // One that the client mends itself.
    refused_with(&kafka, Refusal::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS)
        .await
        .unwrap();
}

/// Goal: too few replicas are in sync for longer than the client's own retries. Invariant: I4.
#[tokio::test]
async fn i4_lasting_refusal_of_replicas_is_of_the_topic() {
    let kafka = Kafka::start();
    let config = kafka.config().property("message.timeout.ms", "2000");
    let publisher = KafkaPublisher::new(&config).unwrap();
    let refusals = [Refusal::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 1000];
    kafka.mock.request_errors(RDKafkaApiKey::Produce, &refusals);
    let refused = publisher.publish(&numbered(1)).await;
    assert!(
        matches!(refused, Err(PublishError::TopicUnavailable(_))),
        "{refused:?}"
    );
    assert!(format!("{refused:?}").contains(TOPIC), "{refused:?}");
    kafka.mock.clear_request_errors(RDKafkaApiKey::Produce);
    publisher.publish(&numbered(2)).await.unwrap();
}

#[tokio::test]
async fn a_message_that_is_too_large_is_never_tried_again() {
    let kafka = Kafka::start();
    let message = OutgoingMessage::new(Uuid::new_v4(), TOPIC, vec![0; 2_000_000]);
    let refused = kafka.publisher().publish(&message).await;
    assert!(
        matches!(refused, Err(PublishError::Permanent(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn unknown_topic_is_unavailable_until_it_exists() {
    let kafka = Kafka::start();
    let unknown = Refusal::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    kafka.mock.topic_error("nowhere", unknown).unwrap();
    let mut message = numbered(1);
    message.topic = "nowhere".into();
    let publisher = kafka.publisher();
    let refused = publisher.publish(&message).await;
    assert!(
        matches!(refused, Err(PublishError::TopicUnavailable(_))),
        "{refused:?}"
    );
    kafka
        .mock
        .topic_error("nowhere", Refusal::RD_KAFKA_RESP_ERR_NO_ERROR)
        .unwrap();
    let deadline = tokio::time::Instant::now() + crate::PATIENCE;
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
    let refused = publisher.check().await;
    assert!(
        matches!(refused, Err(PublishError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_broker_that_is_down_is_unavailable_until_it_is_up() {
    let kafka = Kafka::start();
    let config = kafka.config().property("message.timeout.ms", "2000");
    let publisher = KafkaPublisher::new(&config).unwrap();
    publisher.publish(&numbered(0)).await.unwrap();
    kafka.mock.broker_down(-1).unwrap();
    let refused = publisher.publish(&numbered(1)).await;
    assert!(
        matches!(refused, Err(PublishError::Unavailable(_))),
        "{refused:?}"
    );

    kafka.mock.broker_up(-1).unwrap();
    let deadline = tokio::time::Instant::now() + crate::PATIENCE;
    while let Err(error) = publisher.publish(&numbered(1)).await {
        assert!(matches!(error, PublishError::Unavailable(_)), "{error:?}");
        assert!(tokio::time::Instant::now() < deadline, "{error:?}");
    }
    let mut source = kafka.source();
    assert_eq!(crate::numbers(&crate::take(&mut source, 2).await), [0, 1]);
}

#[tokio::test]
async fn a_queue_that_is_full_is_unavailable() {
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
async fn a_producer_that_failed_for_good_is_replaced() {
    let kafka = Kafka::start();
    let refused = Refusal::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    kafka
        .mock
        .request_errors(RDKafkaApiKey::InitProducerId, &[refused]);
    let publisher = kafka.publisher();
    let refused = publisher.publish(&numbered(1)).await;
    assert!(
        matches!(refused, Err(PublishError::Unavailable(_))),
        "{refused:?}"
    );
    publisher.publish(&numbered(1)).await.unwrap();
}
