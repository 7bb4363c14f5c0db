//! A connection, or the reason why there is none, in bounded time.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use tokio::time::timeout;

use super::RabbitMqConfig;
use crate::TransportError;

/// How long a server that is there takes at most for what needs no disk: connections and channels. One that is about to come up
/// may take a connection and never say a word; trying again is what helps.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Connects under a name that people find in RabbitMQ's own lists.
pub(super) async fn connect(config: &RabbitMqConfig, role: &str) -> Result<Connection, TransportError> {
    let properties = ConnectionProperties::default().with_connection_name(format!("idem {role}").into());
    let connecting = Connection::connect(&config.url, properties);
    Ok(timeout(PATIENCE.min(config.timeout()), connecting).await??)
}
