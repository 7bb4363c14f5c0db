//! The connections of a role, with the same interface for every broker. A connection is opened at
//! its first use.

use std::time::Duration;

use anyhow::Result;
use deadpool_postgres::{Manager, Pool};
use idem_nats::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
use idem_rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription};
use idem_runtime::{
    Consumer, Delivery, OutgoingMessage, PublishError, Publisher, Source, consumer::Batches,
    transport::TransportError,
};
use tokio_postgres::NoTls;

use super::{flawed, note::Counter};
use crate::range::live::{
    business::CONSUMER_ROLE,
    config::Kind,
    flaw::Flaw,
    place::{Queue, nats, rabbitmq},
    post::Post,
};

/// The number of messages or batches that a process handles concurrently.
const CONCURRENCY: usize = 4;

/// The largest number of deliveries of a failing message. Failures of the environment do not count,
/// and each process counts separately.
const MAX_DELIVERIES: u32 = 12;

/// The largest number of unsettled messages of a process. The broker redelivers them when the
/// process is killed.
const PREFETCH: u16 = 50;

/// Creates a consumer of a queue.
pub fn consumer(post: &Post, queue: Queue) -> Result<Consumer<QueueSource>> {
    let source = QueueSource::new(post, queue)?;
    let pool = pool(post, CONSUMER_ROLE, CONCURRENCY + 1)?;
    Ok(Consumer::new(pool, source).concurrency(CONCURRENCY))
}

/// Creates a consumer that handles the messages of a queue in batches.
pub fn batching(post: &Post, queue: Queue) -> Result<Consumer<QueueSource>> {
    Ok(consumer(post, queue)?
        .batches(Batches::new(10).linger(Duration::from_millis(10)))
        .max_deliveries(MAX_DELIVERIES)
        .back_off(Duration::from_millis(100), Duration::from_secs(1)))
}

/// Creates a pool of connections to the database with a role that has only the privileges it needs.
pub fn pool(post: &Post, role: &str, connections: usize) -> Result<Pool> {
    let mut config: tokio_postgres::Config = post.database.parse()?;
    config.user(role);
    let manager = Manager::new(config, NoTls);
    Ok(Pool::builder(manager).max_size(connections).build()?)
}

/// The messages of a queue of any broker. The deliveries are counted in a file, which survives the
/// kill of the process.
pub struct QueueSource {
    broker: BrokerSource,
    counter: Counter,
    flaw: Option<Flaw>,
    queue: Queue,
    /// Whether the planted bug has stopped the deliveries.
    is_stuck: bool,
}

enum BrokerSource {
    RabbitMq(Box<RabbitMqSource>),
    Nats(Box<NatsSource>),
}

impl QueueSource {
    /// Creates a source of the messages of this queue.
    pub fn new(post: &Post, queue: Queue) -> Result<Self> {
        let broker = match post.broker {
            Kind::RabbitMq => BrokerSource::RabbitMq(Box::new(RabbitMqSource::new(
                RabbitMqConfig::new(&post.broker_url),
                RabbitMqSubscription {
                    prefetch: PREFETCH,
                    ..RabbitMqSubscription::new(queue.name())
                },
            ))),
            Kind::Nats => {
                let (stream, consumer) = (nats::plain(queue.subject()), nats::plain(queue.name()));
                BrokerSource::Nats(Box::new(NatsSource::new(
                    NatsConfig::new(&post.broker_url),
                    NatsSubscription {
                        prefetch: PREFETCH,
                        ..NatsSubscription::new(stream, consumer)
                    },
                )))
            }
        };
        Ok(Self {
            broker,
            counter: Counter::open(&post.dir, queue.name())?,
            flaw: post.flaw,
            queue,
            is_stuck: false,
        })
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
        self.counter.add(1)?;
        Ok(Some(match self.flaw {
            Some(Flaw::AckBeforeCommit) => flawed::acknowledged(delivery).await?,
            Some(Flaw::RejectDrops) => flawed::dropping(delivery),
            _ => delivery,
        }))
    }
}

/// A publisher to any broker.
pub enum BrokerPublisher {
    /// RabbitMQ.
    RabbitMq(RabbitMqPublisher),
    /// NATS with JetStream.
    Nats(NatsPublisher),
}

impl BrokerPublisher {
    /// Creates a publisher to this broker.
    pub fn new(kind: Kind, url: &str) -> Self {
        match kind {
            Kind::RabbitMq => Self::RabbitMq(RabbitMqPublisher::new(RabbitMqConfig {
                exchange: rabbitmq::EXCHANGE.into(),
                ..RabbitMqConfig::new(url)
            })),
            Kind::Nats => Self::Nats(NatsPublisher::new(NatsConfig::new(url))),
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
