//! Support for the brokers. Each broker has a source of messages and a publisher of effects.

mod headers;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod withheld;

#[cfg(feature = "kafka")]
pub use kafka::{DeadLetter, KafkaConfig, KafkaPublisher, KafkaSource, KafkaSubscription};
#[cfg(feature = "nats")]
pub use nats::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription};
