//! Creates the publisher for the broker in the settings.

use anyhow::{Result, anyhow};
use idem_kafka::KafkaPublisher;
use idem_nats::NatsPublisher;
use idem_rabbitmq::RabbitMqPublisher;
use idem_runtime::{OutgoingMessage, PublishError, Publisher};

use crate::config::Broker;

/// The publisher for one of the supported brokers.
pub enum Publishers {
    RabbitMq(RabbitMqPublisher),
    Nats(NatsPublisher),
    Kafka(KafkaPublisher),
}

impl Publishers {
    /// Returns the publisher for this broker, which connects at its first use. Fails if the
    /// settings are not valid.
    pub fn new(broker: Broker) -> Result<Self> {
        Ok(match broker {
            Broker::RabbitMq(config) => {
                config.check()?;
                Self::RabbitMq(RabbitMqPublisher::new(config))
            }
            Broker::Nats(config) => {
                config.check()?;
                Self::Nats(NatsPublisher::new(config))
            }
            Broker::Kafka(config) => {
                Self::Kafka(KafkaPublisher::new(&config).map_err(|error| anyhow!(error))?)
            }
        })
    }
}

impl Publisher for Publishers {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        match self {
            Self::RabbitMq(publisher) => publisher.publish(message).await,
            Self::Nats(publisher) => publisher.publish(message).await,
            Self::Kafka(publisher) => publisher.publish(message).await,
        }
    }

    async fn check(&self) -> Result<(), PublishError> {
        match self {
            Self::RabbitMq(publisher) => publisher.check().await,
            Self::Nats(publisher) => publisher.check().await,
            Self::Kafka(publisher) => publisher.check().await,
        }
    }
}
