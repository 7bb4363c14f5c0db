//! Creates the publisher for the broker in the settings.

use anyhow::{Result, anyhow};
use idem_kafka::KafkaPublisher;
use idem_nats::NatsPublisher;
use idem_rabbitmq::RabbitMqPublisher;
use idem_runtime::relay::Topics;

use crate::config::Broker;

/// Returns the publisher for this broker, which connects at its first use. Fails if the settings
/// are not valid.
pub fn publisher(broker: Broker) -> Result<Topics> {
    let all = Topics::new();
    Ok(match broker {
        Broker::RabbitMq(config) => {
            config.check()?;
            all.otherwise(RabbitMqPublisher::new(config))
        }
        Broker::Nats(config) => {
            config.check()?;
            all.otherwise(NatsPublisher::new(config))
        }
        Broker::Kafka(config) => {
            all.otherwise(KafkaPublisher::new(&config).map_err(|error| anyhow!(error))?)
        }
    })
}
