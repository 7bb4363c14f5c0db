//! One broker of the mock cluster of librdkafka, and what the tests publish to it and take from it.
//! The mock runs inside the client library and uses the real protocol over loopback. It has no
//! disks, no replication and no access rules.

use std::time::Duration;

use idem_kafka::{DeadLetter, KafkaConfig, KafkaPublisher, KafkaSource, KafkaSubscription};
use idem_runtime::{Delivery, Message, OutgoingMessage};
use idem_runtime::{Publisher, Settlement, Source};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    mocking::MockCluster,
    producer::DefaultProducerContext,
};
use tokio::time::timeout;
use uuid::Uuid;

/// The longest time to wait for one event. It is long because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const TOPIC: &str = "orders";
pub const DEAD: &str = "orders.dead";
pub const GROUP: &str = "shop";

pub struct Kafka {
    pub mock: MockCluster<'static, DefaultProducerContext>,
}

impl Kafka {
    /// Starts one broker. Each topic has one partition, so the offset of a message equals its
    /// number.
    pub fn start() -> Self {
        let mock = MockCluster::new(1).unwrap();
        for topic in [TOPIC, DEAD] {
            mock.create_topic(topic, 1, 1).unwrap();
        }
        Self { mock }
    }

    pub fn config(&self) -> KafkaConfig {
        KafkaConfig::new(self.mock.bootstrap_servers())
    }

    pub fn publisher(&self) -> KafkaPublisher {
        KafkaPublisher::new(&self.config()).unwrap()
    }

    pub fn source(&self) -> KafkaSource {
        self.source_of(&subscription())
    }

    pub fn source_of(&self, subscription: &KafkaSubscription) -> KafkaSource {
        KafkaSource::new(&short_session(self.config()), subscription).unwrap()
    }

    /// Publishes one message for each number. The payload of the message is the number.
    pub async fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        let publisher = self.publisher();
        for n in numbers {
            publisher.publish(&numbered(n)).await.unwrap();
        }
    }

    /// Returns the committed offset of the group in `TOPIC`, at which the group continues after a
    /// restart.
    pub fn committed(&self) -> Option<i64> {
        self.committed_of(TOPIC, 0)
    }

    pub fn committed_of(&self, topic: &str, partition: i32) -> Option<i64> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.mock.bootstrap_servers())
            .set("group.id", GROUP)
            .create()
            .unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, partition);
        let committed = consumer.committed_offsets(list, PATIENCE).unwrap();
        match committed.elements()[0].offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        }
    }
}

/// Shortens the session timeout, because the mock waits for this time also after a member has left
/// the group.
pub fn short_session(config: KafkaConfig) -> KafkaConfig {
    config
        .property("session.timeout.ms", "3000")
        .property("heartbeat.interval.ms", "500")
}

pub fn subscription() -> KafkaSubscription {
    KafkaSubscription {
        dead_letter: DeadLetter::Topic(DEAD.into()),
        ..KafkaSubscription::new(GROUP, [TOPIC])
    }
}

pub fn numbered(n: u32) -> OutgoingMessage {
    let mut message = OutgoingMessage::new(Uuid::from_u128(n.into()), TOPIC, n.to_string());
    message.key = Some("one key".into());
    message
}

pub fn number(message: &Message) -> u32 {
    message.json().unwrap()
}

pub async fn next(source: &mut KafkaSource) -> Delivery {
    timeout(PATIENCE, source.next())
        .await
        .expect("no delivery in time")
        .unwrap()
        .expect("the source has ended")
}

/// Returns the next `count` deliveries, in order of arrival.
pub async fn take(source: &mut KafkaSource, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        deliveries.push(next(source).await);
    }
    deliveries
}

pub async fn acknowledge(deliveries: impl IntoIterator<Item = Delivery>) {
    for delivery in deliveries {
        delivery.settle(Settlement::Acknowledge).await.unwrap();
    }
}
