//! The Rust examples of the guides in `docs/`, each a function that is compiled and never called,
//! with what they speak of.

#![allow(unused)]

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::*;
use tower::ServiceBuilder;

/// What the examples take as given.
pub struct Given {
    /// Connections to the database.
    pub pool: Pool,
    /// One of them.
    pub client: tokio_postgres::Client,
    /// Where messages come from.
    pub source: NoSource,
    /// Where effects go.
    pub publisher: NoPublisher,
    /// Another one.
    pub rabbit: NoPublisher,
    /// And another.
    pub nats: NoPublisher,
    /// Where Kafka is.
    pub kafka: KafkaConfig,
    /// The policies, built.
    pub idem: Idem,
    /// And before that.
    pub policies: Policies,
    /// When to end.
    pub shutdown: std::future::Ready<()>,
}

/// A source without messages.
pub struct NoSource;

impl Source for NoSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        Ok(None)
    }
}

/// A publisher that takes everything.
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
