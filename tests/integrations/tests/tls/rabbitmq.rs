//! Tests of TLS and logins of RabbitMQ.

use idem_brokers::{Authority, Certified, RabbitMq, Validity};
use idem_rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription};
use idem_runtime::{Publisher, Settlement, Source};
use idem_testkit::{DEADLINE, until};
use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use tokio::time::timeout;

use crate::{EXPIRED, OTHER_HOST, UNKNOWN, assert_unavailable, effect};

fn url(server: &RabbitMq, host: &str) -> String {
    format!(
        "amqps://guest:guest@{host}:{}/%2f",
        server.tls_port().unwrap()
    )
}

fn trusting(authority: &Authority, url: String) -> RabbitMqConfig {
    RabbitMqConfig {
        ca: Some(authority.ca()),
        ..RabbitMqConfig::new(url)
    }
}

fn start(server: &Certified) -> RabbitMq {
    RabbitMq::start_with_tls(server, None).unwrap()
}

async fn publish(config: RabbitMqConfig) -> Result<(), idem_runtime::PublishError> {
    RabbitMqPublisher::new(config)
        .publish(&effect("orders"))
        .await
}

/// Declares the queue over a connection without TLS.
async fn declare(server: &RabbitMq) {
    let url = server.url();
    let connection = Connection::connect(&url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let durable = QueueDeclareOptions::durable();
    channel
        .queue_declare("orders".into(), durable, FieldTable::default())
        .await
        .unwrap();
}

async fn assert_delivered(config: RabbitMqConfig) {
    let mut source = RabbitMqSource::new(config, RabbitMqSubscription::new("orders"));
    let delivery = timeout(DEADLINE, source.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(&delivery.message().payload()[..], b"1");
    delivery.settle(Settlement::Acknowledge).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_publisher_and_source_verify_the_server() {
    let authority = Authority::create().unwrap();
    let server = start(&authority.server(&["127.0.0.1"], Validity::Now).unwrap());
    declare(&server).await;
    let url_of = |host| url(&server, host);
    let config = trusting(&authority, url_of("127.0.0.1"));
    publish(config.clone()).await.unwrap();
    assert_delivered(config).await;

    let unrelated = Authority::create().unwrap();
    let config = RabbitMqConfig::new(url_of("127.0.0.1"));
    assert_unavailable(publish(config).await, UNKNOWN);
    let config = trusting(&unrelated, url_of("127.0.0.1"));
    assert_unavailable(publish(config).await, UNKNOWN);
    let other = trusting(&authority, url_of("localhost"));
    assert_unavailable(publish(other).await, OTHER_HOST);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_certificate_of_rabbitmq_is_an_error() {
    let authority = Authority::create().unwrap();
    let server = start(&authority.server(&["127.0.0.1"], Validity::Expired).unwrap());
    let config = trusting(&authority, url(&server, "127.0.0.1"));
    assert_unavailable(publish(config).await, EXPIRED);
}

/// Goal: the client presents its certificate. With `EXTERNAL`, the certificate determines the user.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_logs_in_to_rabbitmq() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let server = RabbitMq::start_with_tls(&server, Some(&authority.ca())).unwrap();
    declare(&server).await;
    let config = trusting(&authority, url(&server, "127.0.0.1"));
    let guest = authority.client("guest").unwrap();
    let with = |config: &RabbitMqConfig, client: &Certified| RabbitMqConfig {
        client_certificate: Some(client.certificate.clone()),
        client_key: Some(client.key.clone()),
        ..config.clone()
    };
    publish(with(&config, &guest)).await.unwrap();
    // The client receives either the alert of the server or the end of the connection, so its error
    // is not checked. The log of the server shows the alert by its name in RFC 8446. The text next
    // to the name depends on the version of Erlang.
    let rejection = "certificate_required";
    assert!(!server.log().unwrap().contains(rejection));
    assert_unavailable(publish(config).await, "");
    until(rejection, async || {
        server.log().unwrap().contains(rejection)
    })
    .await;

    // With `EXTERNAL`, the login in the URL has no effect.
    let port = server.tls_port().unwrap();
    let external = format!("amqps://unused:wrong@127.0.0.1:{port}/%2f?auth_mechanism=external");
    let external = trusting(&authority, external);
    publish(with(&external, &guest)).await.unwrap();
    let ann = authority.client("ann").unwrap();
    let denied = with(&external, &ann);
    assert_unavailable(publish(denied).await, "ACCESS_REFUSED");
}

#[test]
fn certificates_without_amqps_are_an_error() {
    let config = RabbitMqConfig {
        ca: Some("/ca.pem".into()),
        ..RabbitMqConfig::new("amqp://host")
    };
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("not amqps://"), "{error}");
    let missing = RabbitMqConfig {
        ca: Some("/none.pem".into()),
        ..RabbitMqConfig::new("amqps://host")
    }
    .check();
    assert!(missing.unwrap_err().to_string().contains("/none.pem"));
}
