//! The channel and the connection of a source.

use idem_runtime::transport::TransportError;
use lapin::{Channel, Connection, options::BasicQosOptions};
use tokio::runtime::Handle;

use super::{RabbitMqConfig, RabbitMqSubscription, connect::connect};

/// The channel and the connection on which deliveries are settled. They are closed when the last
/// reference is dropped.
pub(super) struct Session {
    pub(super) channel: Channel,
    _connection: Connection,
    /// The runtime of the source. The source and its receipts can be dropped outside of it.
    pub(super) runtime: Handle,
}

impl Session {
    /// Opens a connection and a channel, without a consumer.
    pub(super) async fn open(
        config: &RabbitMqConfig,
        subscription: &RabbitMqSubscription,
    ) -> Result<Self, TransportError> {
        let connection = connect(config, "source").await?;
        let channel = connection.create_channel().await?;
        channel
            .basic_qos(subscription.prefetch, BasicQosOptions::default())
            .await?;
        Ok(Self {
            channel,
            _connection: connection,
            runtime: Handle::current(),
        })
    }
}
