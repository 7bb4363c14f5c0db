//! A connection, or the reason why there is none, in bounded time.

use lapin::{Connection, ConnectionProperties};
use tokio::time::timeout;

use super::RabbitMqConfig;
use crate::TransportError;

/// Connects under a name that people find in RabbitMQ's own lists.
pub(super) async fn connect(config: &RabbitMqConfig, role: &str) -> Result<Connection, TransportError> {
    let properties = ConnectionProperties::default().with_connection_name(format!("idem {role}").into());
    let connecting = Connection::connect(&config.url, properties);
    Ok(timeout(config.timeout(), connecting).await??)
}
