//! A durable queue or stream of one measurement on a broker, with its publisher and its source.

use anyhow::{Result, anyhow};
use async_nats::jetstream::{self, stream};
use idem_brokers::{Nats, RabbitMq};
use idem_nats::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
use idem_rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription};
use idem_runtime::{
    Delivery, OutgoingMessage, PublishError, Publisher, Source, transport::TransportError,
};
use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use uuid::Uuid;

/// The number of messages that the broker may deliver before they are settled.
const PREFETCH: u16 = 1_000;

/// The brokers that are measured.
pub enum Broker {
    RabbitMq(RabbitMq),
    Nats(Nats),
}

impl Broker {
    /// Starts both brokers.
    pub fn all() -> Result<[Self; 2]> {
        Ok([
            Self::RabbitMq(RabbitMq::start()?),
            Self::Nats(Nats::start()?),
        ])
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::RabbitMq(_) => "RabbitMQ",
            Self::Nats(_) => "NATS JetStream",
        }
    }

    /// Creates a durable queue or a file-backed stream. Returns its name, which is also the topic
    /// to publish to.
    pub async fn make_line(&self) -> Result<String> {
        let name = format!("bench-{}", Uuid::new_v4().simple());
        match self {
            Self::RabbitMq(server) => {
                let connection =
                    Connection::connect(&server.url(), ConnectionProperties::default()).await?;
                let durable = QueueDeclareOptions {
                    durable: true,
                    ..Default::default()
                };
                let channel = connection.create_channel().await?;
                channel
                    .queue_declare(name.as_str().into(), durable, FieldTable::default())
                    .await?;
                connection.close(200, "done".into()).await?;
            }
            Self::Nats(server) => {
                let client = async_nats::connect(server.url()).await?;
                jetstream::new(client)
                    .create_stream(stream::Config {
                        name: name.clone(),
                        subjects: vec![name.clone()],
                        ..Default::default()
                    })
                    .await?;
            }
        }
        Ok(name)
    }

    pub fn publisher(&self) -> AnyPublisher {
        match self {
            Self::RabbitMq(server) => {
                AnyPublisher::RabbitMq(RabbitMqPublisher::new(RabbitMqConfig::new(server.url())))
            }
            Self::Nats(server) => {
                AnyPublisher::Nats(NatsPublisher::new(NatsConfig::new(server.url())))
            }
        }
    }

    /// Returns a source that reads the queue or stream `line`.
    pub fn source(&self, line: &str) -> AnySource {
        match self {
            Self::RabbitMq(server) => AnySource::RabbitMq(Box::new(RabbitMqSource::new(
                RabbitMqConfig::new(server.url()),
                RabbitMqSubscription {
                    prefetch: PREFETCH,
                    ..RabbitMqSubscription::new(line)
                },
            ))),
            Self::Nats(server) => AnySource::Nats(Box::new(NatsSource::new(
                NatsConfig::new(server.url()),
                NatsSubscription::new(line, "bench"),
            ))),
        }
    }
}

/// A publisher of either broker.
pub enum AnyPublisher {
    RabbitMq(RabbitMqPublisher),
    Nats(NatsPublisher),
}

impl Publisher for AnyPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        match self {
            Self::RabbitMq(publisher) => publisher.publish(message).await,
            Self::Nats(publisher) => publisher.publish(message).await,
        }
    }
}

/// A source of either broker.
pub enum AnySource {
    RabbitMq(Box<RabbitMqSource>),
    Nats(Box<NatsSource>),
}

impl Source for AnySource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        match self {
            Self::RabbitMq(source) => source.next().await,
            Self::Nats(source) => source.next().await,
        }
    }
}

/// Publishes `messages`, at most `in_flight` at a time, each with a confirmation.
pub async fn publish_all(
    publisher: &impl Publisher,
    messages: &[OutgoingMessage],
    in_flight: usize,
) -> Result<()> {
    use futures_util::{StreamExt, TryStreamExt, stream};
    stream::iter(messages)
        .map(|message| publisher.publish(message))
        .buffer_unordered(in_flight)
        .try_for_each(|()| async { Ok(()) })
        .await
        .map_err(|error| anyhow!("{error}"))
}

/// Returns `count` new messages for the queue or stream `line`.
pub fn messages(line: &str, count: u32) -> Vec<OutgoingMessage> {
    (0..count)
        .map(|n| OutgoingMessage::new(Uuid::new_v4(), line, format!(r#"{{"account": {n}}}"#)))
        .collect()
}
