//! Tests of Kafka over TLS. The server is the mock cluster of librdkafka behind a proxy with TLS.
//! SASL is not tested, because the mock does not support it.

use idem_brokers::{Authority, Validity};
use idem_kafka::{KafkaConfig, KafkaPublisher, KafkaSource, KafkaSubscription};
use idem_runtime::{PublishError, Publisher, Settlement, Source};
use idem_testkit::DEADLINE;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use tokio::time::timeout;

use crate::{effect, proxy};

fn mock() -> MockCluster<'static, DefaultProducerContext> {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("orders", 1, 1).unwrap();
    mock
}

fn config(brokers: &str, authority: &Authority) -> KafkaConfig {
    KafkaConfig::new(brokers)
        .property("security.protocol", "ssl")
        .property("ssl.ca.location", authority.ca().display().to_string())
        .property("message.timeout.ms", "4000")
}

async fn publish(config: &KafkaConfig) -> Result<(), PublishError> {
    KafkaPublisher::new(config)
        .unwrap()
        .publish(&effect("orders"))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_over_tls_publishes_and_delivers() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.2"], Validity::Now).unwrap();
    let mock = mock();
    let brokers = proxy::start(&mock.bootstrap_servers(), &server).await;
    let config = config(&brokers, &authority);
    publish(&config).await.unwrap();
    // Remove `message.timeout.ms`, because it is a property of producers only.
    let mut consumer = config;
    consumer.properties.remove("message.timeout.ms");
    let mut source =
        KafkaSource::new(&consumer, &KafkaSubscription::new("shop", ["orders"])).unwrap();
    let delivery = timeout(DEADLINE, source.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(&delivery.message().payload()[..], b"1");
    delivery.settle(Settlement::Acknowledge).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_certificate_makes_kafka_unavailable() {
    let (authority, unrelated) = (Authority::create().unwrap(), Authority::create().unwrap());
    for (names, validity, trusted) in [
        (["127.0.0.2"], Validity::Now, &unrelated),
        (["other.test"], Validity::Now, &authority),
        (["127.0.0.2"], Validity::Expired, &authority),
    ] {
        let server = authority.server(&names, validity).unwrap();
        let mock = mock();
        let brokers = proxy::start(&mock.bootstrap_servers(), &server).await;
        let published = publish(&config(&brokers, trusted)).await;
        let is_unavailable = matches!(published, Err(PublishError::Unavailable(_)));
        assert!(is_unavailable, "{names:?} {validity:?}: {published:?}");
    }
}
