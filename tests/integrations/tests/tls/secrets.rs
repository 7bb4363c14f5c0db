//! Tests that `Debug` output and errors contain no secret.

use std::fmt::Debug;
use std::fs;

use idem_brokers::{Authority, Nats};
use idem_client::Effect;
use idem_kafka::{KafkaConfig, KafkaPublisher};
use idem_nats::{NatsConfig, NatsPublisher};
use idem_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use idem_runtime::{Error, Message, PoolConfig, Publisher};

use crate::effect;

const SECRET: &str = "s3cret";

fn assert_hidden(shown: &dyn Debug) {
    let text = format!("{shown:?} {shown:#?}");
    assert!(!text.contains(SECRET), "{text}");
}

fn assert_error_hides(error: Error) {
    assert_hidden(&error);
    assert!(!error.to_string().contains(SECRET), "{error}");
}

#[test]
fn configurations_show_no_secret() {
    assert_hidden(&PoolConfig::parse("postgres://ann:s3cret@db/shop").unwrap());
    assert_hidden(&PoolConfig::parse("host=db password=s3cret").unwrap());
    assert_hidden(&NatsConfig::new("nats://ann:s3cret@host"));
    assert_hidden(&NatsConfig::new("nats://s3cret@host"));
    assert_hidden(&RabbitMqConfig::new("amqps://ann:s3cret@host"));
    let kafka = KafkaConfig::new("host:1").property("sasl.password", SECRET);
    let kafka = kafka.property("ssl.key.pem", SECRET);
    assert_hidden(&kafka);
    assert!(format!("{kafka:?}").contains("sasl.password"), "{kafka:?}");
}

/// Goal: `Debug` of a message shows the length of its payload, and does not show its content.
#[test]
fn messages_show_no_payload() {
    let message = Message::new("orders", SECRET).with_message_id("m-1");
    assert_hidden(&message);
    assert!(format!("{message:?}").contains("6 bytes"), "{message:?}");
    let mut outgoing = effect("orders");
    outgoing.payload = SECRET.into();
    assert_hidden(&outgoing);
    assert_hidden(&Effect::json("orders", &SECRET).unwrap());
    assert_hidden(&Effect::bytes("orders", SECRET, "text/plain"));
    assert_hidden(&idem_client::inbox::InboxMessage::bytes(SECRET));
}

#[test]
fn errors_of_settings_show_no_secret() {
    for url in [
        "amqp:ann:s3cret@host",
        "http://ann:s3cret@host",
        "amqp://ann:s3cret@host:x",
    ] {
        assert_error_hides(RabbitMqConfig::new(url).check().unwrap_err());
    }
    for url in [
        "http://ann:s3cret@host",
        "nats://ann:s3cret@host:x",
        "wss://s3cret@host",
        "nats://u:s3cret%zz@a",
        "nats://a,secret://u:s3cret@b",
        "nats://u:s3cret@a,nats://u:s3cre@b",
    ] {
        assert_error_hides(NatsConfig::new(url).check().unwrap_err());
    }
    for text in [
        "postgres://ann:s3cret@db:x",
        "host=db password=a s3cret=1",
        "host=db port=s3cret",
    ] {
        assert_error_hides(PoolConfig::parse(text).unwrap_err());
    }
    let files = Authority::create().unwrap();
    let file = files.dir().join("secrets");
    fs::write(
        &file,
        format!("SU{SECRET}\n-----BEGIN PRIVATE KEY-----\n{SECRET}\n"),
    )
    .unwrap();
    assert_error_hides(
        NatsConfig {
            credentials: Some(file.clone()),
            ..NatsConfig::new("nats://a")
        }
        .check()
        .unwrap_err(),
    );
    let name = file.display();
    let pool = PoolConfig::parse(&format!("host=db sslcert={name} sslkey={name}")).unwrap();
    assert_error_hides(pool.build().err().unwrap());
}

/// Goal: errors of the client do not contain the value of a property. The errors of librdkafka
/// contain it, even if the name of the property is misspelt.
#[tokio::test]
async fn errors_of_kafka_show_no_value() {
    for (name, protocol) in [
        ("sasl.passwrd", "sasl_ssl"),
        ("ssl.key.pem", "ssl"),
        ("client.dns.lookup", "ssl"),
    ] {
        let config = KafkaConfig::new("127.0.0.1:1")
            .property("security.protocol", protocol)
            .property(name, SECRET);
        let error = KafkaPublisher::new(&config)
            .err()
            .unwrap_or_else(|| panic!("{name} is accepted"));
        assert_hidden(&error);
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_connections_show_no_secret() {
    let nats = Nats::start_with("authorization { token: other }").unwrap();
    let login = format!("nats://ann:s3cret@127.0.0.1:{}", nats.port());
    let seed = nkeys::KeyPair::new_user().seed().unwrap();
    let files = Authority::create().unwrap();
    let file = files.dir().join("user.nk");
    fs::write(&file, &seed).unwrap();
    for config in [
        NatsConfig::new(login),
        NatsConfig {
            nkey_seed_file: Some(file.clone()),
            ..NatsConfig::new(nats.url())
        },
        NatsConfig::new("nats://ann:s3cret@127.0.0.1:1"),
    ] {
        let error = NatsPublisher::new(config)
            .publish(&effect("x"))
            .await
            .unwrap_err();
        assert_hidden(&error);
        let text = format!("{error} {error:?}");
        assert!(!text.contains(SECRET) && !text.contains(&seed), "{text}");
    }
    let rabbit = RabbitMqPublisher::new(RabbitMqConfig::new("amqp://ann:s3cret@127.0.0.1:1"));
    let error = rabbit.publish(&effect("x")).await.unwrap_err();
    assert_hidden(&error);
    let pool = PoolConfig::parse("postgres://ann:s3cret@127.0.0.1:1/shop").unwrap();
    let error = pool.build().unwrap().get().await.err().unwrap();
    assert_hidden(&error);
    assert!(!error.to_string().contains(SECRET), "{error}");
}
