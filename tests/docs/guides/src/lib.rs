//! The Rust examples of the guides in `docs/`, with the values and functions that they use. Each
//! example is a function that is compiled and never executed.

#![allow(unused)]

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::*;
use idem_kafka::*;
use idem_nats::*;
use idem_rabbitmq::*;
use idem_runtime::{
    Error, consumer::*, filter::Filter, handler::*, policy::*, relay::*, transport::TransportError,
    *,
};

/// The values that the examples use without creating them.
pub struct Given {
    /// A pool of connections to the database.
    pub pool: Pool,
    /// A connection to the database.
    pub client: tokio_postgres::Client,
    /// The source of messages.
    pub source: NoSource,
    /// A publisher of effects.
    pub publisher: NoPublisher,
    /// A publisher for RabbitMQ.
    pub rabbit: NoPublisher,
    /// A publisher for NATS.
    pub nats: NoPublisher,
    /// The configuration of Kafka.
    pub kafka: KafkaConfig,
    /// The client with its policies.
    pub idem: Idem,
    /// The policies from which the client is built.
    pub policies: Policies,
    /// A future that completes when a process must stop.
    pub shutdown: std::future::Ready<()>,
}

/// A source without messages.
pub struct NoSource;

impl Source for NoSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        Ok(None)
    }
}

/// A publisher that accepts every message.
pub struct NoPublisher;

impl Publisher for NoPublisher {
    async fn publish(&self, _: &OutgoingMessage) -> Result<(), PublishError> {
        Ok(())
    }
}

async fn reserve(_: Tx, _: Message) -> Handled {
    Ok(Vec::new())
}

async fn cancel(_: Tx, _: Message) -> Handled {
    Ok(Vec::new())
}

async fn count_hits(_: Tx, _: Message) -> Handled {
    Ok(Vec::new())
}

async fn handle(_: Tx, _: Message) -> Handled {
    Ok(Vec::new())
}

async fn reply(_: &Message, _: &[RecordedEffect]) -> Result<(), Error> {
    Ok(())
}

async fn book_parcel() -> Result<String, std::io::Error> {
    Ok(String::new())
}

async fn charge_card(_: u64, _: String) -> Result<String, std::io::Error> {
    Ok(String::new())
}

async fn find_parcel(_: String) -> Result<Option<String>, std::io::Error> {
    Ok(None)
}

async fn order_parcel(_: u64, _: String) -> Result<String, std::io::Error> {
    Ok(String::new())
}

async fn send_mail(_: u64) -> Result<(), std::io::Error> {
    Ok(())
}

include!(concat!(env!("OUT_DIR"), "/guides.rs"));
