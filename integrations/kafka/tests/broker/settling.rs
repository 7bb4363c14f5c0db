//! Tests of settlement: only settled messages advance the committed offset of the group.

use std::time::{Duration, Instant};

use idem_kafka::{KafkaSource, KafkaSubscription};
use idem_runtime::{Delivery, Publisher, Settlement, Source};
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use tokio::time::{sleep, timeout};

use crate::{
    mock::{
        DEAD, GROUP, Kafka, PATIENCE, TOPIC, acknowledge, next, number, numbered, short_session,
        subscription, take,
    },
    numbers,
};

#[tokio::test]
async fn restarted_group_gets_unsettled_messages_only() {
    let kafka = Kafka::start();
    kafka.publish(0..10).await;
    let mut source = kafka.source();
    let mut deliveries = take(&mut source, 10).await;
    assert_eq!(numbers(&deliveries), (0..10).collect::<Vec<_>>());
    let rest = deliveries.split_off(4);
    acknowledge(deliveries).await;
    drop(rest);
    source.close().await;
    assert_eq!(kafka.committed(), Some(4));

    let mut source = kafka.source();
    let deliveries = take(&mut source, 6).await;
    assert_eq!(numbers(&deliveries), (4..10).collect::<Vec<_>>());
    acknowledge(deliveries).await;
    source.close().await;
    assert_eq!(kafka.committed(), Some(10));
}

#[tokio::test]
async fn closed_kafka_source_counts_prefetched_messages() {
    let kafka = Kafka::start();
    kafka.publish(0..10).await;
    let mut source = kafka.source();
    acknowledge(take(&mut source, 1).await).await;
    // After a close, the group receives all unsettled messages again, also those that librdkafka
    // had buffered.
    let deadline = Instant::now() + PATIENCE;
    let mut returned = source.close().await.returned;
    while returned == 0 {
        assert!(Instant::now() < deadline, "no message was prefetched");
        let mut again = kafka.source();
        drop(take(&mut again, 1).await);
        returned = again.close().await.returned;
    }
    assert!(returned <= 9, "{returned}");
}

#[tokio::test]
async fn commit_stops_at_the_lowest_unsettled_offset() {
    let kafka = Kafka::start();
    kafka.publish(0..5).await;
    let mut source = kafka.source();
    let mut deliveries = take(&mut source, 5).await;
    let second = deliveries.remove(1);
    // Acknowledge the other messages in reverse order.
    deliveries.reverse();
    acknowledge(deliveries).await;
    kafka.assert_committed(1).await;
    acknowledge([second]).await;
    kafka.assert_committed(5).await;
    drop(source);

    kafka.publish([5]).await;
    let mut source = kafka.source();
    assert_eq!(number(next(&mut source).await.message()), 5);
}

/// Each redelivery has a delivery count, and the first delivery has none. The committed offset does
/// not pass the unsettled message.
#[tokio::test]
async fn retried_message_is_redelivered_and_holds_the_offset() {
    let kafka = Kafka::start();
    kafka.publish(0..2).await;
    let mut source = kafka.source();
    let mut deliveries = take(&mut source, 2).await;
    acknowledge(deliveries.drain(1..)).await;

    let mut retried = deliveries.remove(0);
    assert_eq!(retried.message().deliveries(), None);
    for deliveries in 2..5 {
        let began = Instant::now();
        let after = Duration::from_millis(300);
        retried.settle(Settlement::Retry { after }).await.unwrap();
        retried = next(&mut source).await;
        assert!(began.elapsed() >= after);
        assert_eq!(number(retried.message()), 0);
        assert_eq!(retried.message().deliveries(), Some(deliveries));
    }
    // Assert that the offset is not committed during the next second.
    sleep(Duration::from_secs(1)).await;
    assert!(kafka.committed().is_none_or(|offset| offset == 0));
    acknowledge([retried]).await;
    kafka.assert_committed(2).await;
}

#[tokio::test]
async fn message_waiting_for_retry_is_redelivered_after_restart() {
    let kafka = Kafka::start();
    kafka.publish([7]).await;
    let mut source = kafka.source();
    let after = Duration::from_secs(3600);
    next(&mut source)
        .await
        .settle(Settlement::Retry { after })
        .await
        .unwrap();
    source.close().await;
    let again = next(&mut kafka.source()).await;
    assert_eq!(
        (number(again.message()), again.message().deliveries()),
        (7, None)
    );
}

#[tokio::test]
async fn dropped_delivery_is_redelivered_by_kafka_source() {
    let kafka = Kafka::start();
    kafka.publish([7]).await;
    let mut source = kafka.source();
    drop(next(&mut source).await);
    let again = next(&mut source).await;
    assert_eq!(
        (number(again.message()), again.message().deliveries()),
        (7, Some(2))
    );
}

/// The dead letter has the payload, the binary key and the headers of the message. The reason and
/// the source are added as headers.
#[tokio::test]
async fn rejected_message_reaches_dead_letter_topic_unchanged() {
    let kafka = Kafka::start();
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", kafka.mock.bootstrap_servers())
        .create()
        .unwrap();
    let key = [0xff, 0x00];
    let header = Header {
        key: "note",
        value: Some("kept"),
    };
    let record = FutureRecord::to(TOPIC)
        .key(&key[..])
        .payload("poison")
        .headers(OwnedHeaders::new().insert(header));
    producer
        .send_result(record)
        .unwrap()
        .await
        .unwrap()
        .unwrap();

    let mut source = kafka.source();
    let poison = next(&mut source).await;
    poison
        .settle(Settlement::reject("it is poison"))
        .await
        .unwrap();
    kafka.assert_committed(1).await;

    let dead = KafkaSubscription::new("undertaker", [DEAD]);
    let letter = next(&mut kafka.source_of(&dead)).await;
    let message = letter.message();
    assert_eq!(message.payload(), &b"poison"[..]);
    assert_eq!(message.key(), Some("/wA="));
    assert_eq!(message.header("note"), Some("kept"));
    assert_eq!(
        message.header("idem-dead-letter-reason"),
        Some("it is poison")
    );
    assert_eq!(
        message.header("idem-dead-letter-source"),
        Some("orders/0/0")
    );
}

#[tokio::test]
async fn message_is_redelivered_when_its_dead_letter_fails() {
    let kafka = Kafka::start();
    kafka.publish([7]).await;
    let mut source = kafka.source();
    let delivery = next(&mut source).await;
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    kafka.mock.request_errors(RDKafkaApiKey::Produce, &[error]);
    assert!(delivery.settle(Settlement::reject("poison")).await.is_err());
    assert!(kafka.committed().is_none_or(|offset| offset == 0));

    let again = next(&mut source).await;
    assert_eq!(
        (number(again.message()), again.message().deliveries()),
        (7, Some(2))
    );
    again.settle(Settlement::reject("poison")).await.unwrap();
    kafka.assert_committed(1).await;
}

#[tokio::test]
async fn max_unsettled_pauses_delivery_and_loses_nothing() {
    let kafka = Kafka::start();
    kafka.publish(0..50).await;
    let mut source = kafka.source_of(&KafkaSubscription {
        max_unsettled: 5,
        ..subscription()
    });
    let mut held = take(&mut source, 5).await;
    // This time is long enough for the source to pause its partitions.
    assert!(
        timeout(Duration::from_secs(3), source.next())
            .await
            .is_err()
    );
    for n in 5..50 {
        acknowledge(held.drain(..1)).await;
        let delivery = next(&mut source).await;
        assert_eq!(number(delivery.message()), n);
        held.push(delivery);
    }
    acknowledge(held).await;
    kafka.assert_committed(50).await;
}

/// The limit counts the bytes of records that wait in the source, too.
#[tokio::test]
async fn max_unsettled_bytes_limits_fetched_messages() {
    let kafka = Kafka::start();
    kafka.publish(0..3).await;
    let mut source = kafka.source_of(&KafkaSubscription {
        max_unsettled_bytes: 1,
        ..subscription()
    });
    for n in 0..3 {
        let delivery = next(&mut source).await;
        assert_eq!(number(delivery.message()), n);
        // This time is long enough for the source to fetch the next message.
        let more = timeout(Duration::from_secs(2), source.next()).await;
        assert!(more.is_err(), "{more:?}");
        acknowledge([delivery]).await;
    }
    kafka.assert_committed(3).await;
}

#[tokio::test]
async fn settlement_after_revocation_does_nothing() {
    let kafka = Kafka::start();
    kafka.mock.create_topic("wide", 2, 1).unwrap();
    let wide = KafkaSubscription::new(GROUP, ["wide"]);
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", kafka.mock.bootstrap_servers())
        .create()
        .unwrap();
    for partition in 0..2 {
        let record = FutureRecord::<str, str>::to("wide")
            .partition(partition)
            .payload("1");
        producer
            .send_result(record)
            .unwrap()
            .await
            .unwrap()
            .unwrap();
    }
    let mut first = kafka.source_of(&wide);
    let held = take(&mut first, 2).await;

    // A second member takes over one of the two partitions. The first member gets the other
    // partition again, so the unsettled message of that partition is redelivered.
    let mut second = kafka.source_of(&wide);
    let moved = partition(&next(&mut second).await);
    let stayed = next(&mut first).await;
    assert_eq!(
        (partition(&stayed), stayed.message().deliveries()),
        (1 - moved, None)
    );
    for late in held {
        late.settle(Settlement::RETRY).await.unwrap();
    }
    assert!(timeout(Duration::from_secs(2), first.next()).await.is_err());
    drop(stayed);
    drop(first);
    assert_eq!(kafka.committed_of("wide", moved).unwrap_or_default(), 0);
}

/// The memory of a source is bounded, however often partitions move while its consumer is paused.
#[tokio::test]
async fn records_of_revoked_partitions_are_dropped() {
    let kafka = Kafka::start();
    kafka.mock.create_topic("wide", 2, 1).unwrap();
    let wide = KafkaSubscription::new(GROUP, ["wide"]);
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", kafka.mock.bootstrap_servers())
        .create()
        .unwrap();
    for n in 0..20 {
        let record = FutureRecord::<str, str>::to("wide")
            .partition(n % 2)
            .payload("1");
        producer
            .send_result(record)
            .unwrap()
            .await
            .unwrap()
            .unwrap();
    }
    // The source fetches all records, and then no more of them are taken from it.
    let mut first = kafka.source_of(&wide);
    acknowledge(take(&mut first, 1).await).await;
    let mut second = kafka.source_of(&wide);
    drop(next(&mut second).await);
    // The first member keeps one partition, which has ten records.
    let returned = first.close().await.returned;
    assert!(returned <= 10, "{returned} records were queued");
}

fn partition(delivery: &Delivery) -> i32 {
    delivery.message().coordinates().unwrap().partition
}

#[tokio::test]
async fn last_settlement_commits_after_source_is_dropped() {
    let kafka = Kafka::start();
    kafka.publish(0..2).await;
    let mut source = kafka.source();
    let deliveries = take(&mut source, 2).await;
    drop(source);
    // A source without unsettled deliveries would leave the group within this time.
    sleep(Duration::from_secs(2)).await;
    acknowledge(deliveries).await;
    kafka.assert_committed(2).await;
}

#[tokio::test]
async fn missing_topic_is_an_error_until_it_is_created() {
    let kafka = Kafka::start();
    kafka.publish([7]).await;
    let config = short_session(kafka.config());
    let config = config.property("topic.metadata.refresh.interval.ms", "500");
    let topics = KafkaSubscription::new(GROUP, [TOPIC, "late"]);
    let mut source = KafkaSource::new(&config, &topics).unwrap();
    wait_for_error(&mut source).await;
    let other = next(&mut source).await;
    assert_eq!(number(other.message()), 7);
    acknowledge([other]).await;

    kafka.mock.create_topic("late", 1, 1).unwrap();
    let mut late = numbered(8);
    late.topic = "late".into();
    kafka.publisher().publish(&late).await.unwrap();
    assert_eq!(number(through_errors(&mut source).await.message()), 8);
}

#[tokio::test]
async fn failed_commit_is_retried() {
    let kafka = Kafka::start();
    kafka.publish([7]).await;
    let mut source = kafka.source();
    let delivery = next(&mut source).await;
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    kafka
        .mock
        .request_errors(RDKafkaApiKey::OffsetCommit, &[error; 2]);
    acknowledge([delivery]).await;
    kafka.assert_committed(1).await;
}

#[tokio::test]
async fn source_continues_when_the_broker_returns() {
    let kafka = Kafka::start();
    kafka.publish([0]).await;
    // The session timeout is longer than all waits of this test. If the session ended, the group
    // would revoke the partition, and the source would deliver uncommitted messages again.
    let config = kafka.config().property("session.timeout.ms", "300000");
    let mut source = KafkaSource::new(&config, &subscription()).unwrap();
    let first = next(&mut source).await;
    kafka.mock.broker_down(-1).unwrap();
    // Wait until the source reports the error. Then settle the message while the broker is down.
    wait_for_error(&mut source).await;
    acknowledge([first]).await;
    kafka.mock.broker_up(-1).unwrap();
    kafka.publish([1]).await;

    let second = through_errors(&mut source).await;
    assert_eq!(number(second.message()), 1);
    acknowledge([second]).await;
    kafka.assert_committed(2).await;
}

/// Returns the next delivery. The source may report further errors before it delivers.
async fn through_errors(source: &mut KafkaSource) -> Delivery {
    let delivered = async {
        loop {
            if let Ok(delivery) = source.next().await {
                break delivery.expect("the source has ended");
            }
        }
    };
    timeout(PATIENCE, delivered)
        .await
        .expect("no delivery in time")
}

async fn wait_for_error(source: &mut KafkaSource) {
    let result = timeout(PATIENCE, source.next())
        .await
        .expect("no error in time");
    assert!(result.is_err(), "{result:?}");
}

#[tokio::test]
async fn dropped_source_does_not_block_its_thread() {
    let kafka = Kafka::start();
    kafka.publish([7]).await;
    let mut source = kafka.source();
    acknowledge([next(&mut source).await]).await;
    // When the source is dropped, the last commit and the leave request have to wait for the
    // broker.
    kafka.mock.broker_down(-1).unwrap();
    let began = Instant::now();
    drop(source);
    assert!(
        began.elapsed() < Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
}
