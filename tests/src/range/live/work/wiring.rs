//! What a role is connected with: the same for every broker. Nothing connects before it is used.

use std::time::Duration;

use anyhow::Result;
use deadpool_postgres::{Manager, Pool};
use idem_client::{
    Delivery, NatsConfig, NatsPublisher, NatsSource, NatsSubscription, OutgoingMessage,
    PublishError, Publisher, RabbitMqConfig, RabbitMqPublisher, RabbitMqSource,
    RabbitMqSubscription, Source, TransportError,
};
use tokio_postgres::NoTls;

use super::{Post, flawed, note::Counter};
use crate::range::live::{
    Flaw, Kind,
    place::{Queue, nats, rabbitmq},
};

/// Failures of the environment use up none of these, and each process counts for itself.
pub const MAX_DELIVERIES: u32 = 12;

/// How long a failed message waits, the first time and at most.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// See [`FIRST_PAUSE`].
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many messages a process may hold: those of a killed one come again.
const PREFETCH: u16 = 50;

/// Connections to the database of a role that may do its work and nothing else.
pub fn pool(post: &Post, role: &str, connections: usize) -> Result<Pool> {
    let mut config: tokio_postgres::Config = post.database.parse()?;
    config.user(role);
    let manager = Manager::new(config, NoTls);
    Ok(Pool::builder(manager).max_size(connections).build()?)
}

/// The messages of a queue, whatever broker it is in; counted over the deaths of their process.
pub struct QueueSource {
    broker: BrokerSource,
    counter: Counter,
    flaw: Option<Flaw>,
    queue: Queue,
    /// Whether the planted bug has it deliver nothing any more.
    is_stuck: bool,
}

enum BrokerSource {
    RabbitMq(Box<RabbitMqSource>),
    Nats(Box<NatsSource>),
}

impl QueueSource {
    /// Listens to this queue.
    pub fn new(post: &Post, queue: Queue, counter: Counter) -> Self {
        let broker = match post.broker {
            Kind::RabbitMq => BrokerSource::RabbitMq(Box::new(RabbitMqSource::new(
                RabbitMqConfig::new(&post.broker_url),
                RabbitMqSubscription::new(queue.name()).prefetch(PREFETCH),
            ))),
            Kind::Nats => {
                let subscription =
                    NatsSubscription::new(nats::plain(queue.subject()), nats::plain(queue.name()));
                BrokerSource::Nats(Box::new(NatsSource::new(
                    NatsConfig::new(&post.broker_url),
                    subscription.prefetch(PREFETCH),
                )))
            }
        };
        Self {
            broker,
            counter,
            flaw: post.flaw,
            queue,
            is_stuck: false,
        }
    }
}

impl Source for QueueSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        if self.is_stuck {
            return std::future::pending().await;
        }
        let next = match &mut self.broker {
            BrokerSource::RabbitMq(source) => source.next().await,
            BrokerSource::Nats(source) => source.next().await,
        };
        self.is_stuck = next.is_err()
            && self.flaw == Some(Flaw::StuckObserver)
            && self.queue == Queue::Observer;
        let Some(delivery) = next? else {
            return Ok(None);
        };
        self.counter.add()?;
        Ok(Some(match self.flaw {
            Some(Flaw::AckBeforeCommit) => flawed::acknowledged(delivery).await?,
            Some(Flaw::RejectDrops) => flawed::dropping(delivery),
            _ => delivery,
        }))
    }
}

/// Publishes to whatever broker it is.
pub enum BrokerPublisher {
    /// RabbitMQ.
    RabbitMq(RabbitMqPublisher),
    /// NATS with JetStream.
    Nats(NatsPublisher),
}

impl BrokerPublisher {
    /// Publishes to the broker of this post.
    pub fn new(post: &Post) -> Self {
        match post.broker {
            Kind::RabbitMq => Self::RabbitMq(RabbitMqPublisher::new(
                RabbitMqConfig::new(&post.broker_url).exchange(rabbitmq::EXCHANGE),
            )),
            Kind::Nats => Self::Nats(NatsPublisher::new(NatsConfig::new(&post.broker_url))),
        }
    }
}

impl Publisher for BrokerPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        match self {
            Self::RabbitMq(publisher) => publisher.publish(message).await,
            Self::Nats(publisher) => publisher.publish(message).await,
        }
    }
}
