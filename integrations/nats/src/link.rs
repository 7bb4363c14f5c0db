//! The connection of a source, with the number of times that it was lost.

use async_nats::{ConnectOptions, Event, jetstream::Context};
use idem_runtime::transport::TransportError;
use tokio::sync::watch;

use super::NatsConfig;

/// The connection of a source.
pub(super) struct Link {
    pub(super) context: Context,
    losses: watch::Receiver<u64>,
}

impl Link {
    pub(super) async fn connect(config: &NatsConfig) -> Result<Self, TransportError> {
        let (count, losses) = watch::channel(0);
        let options = ConnectOptions::new().event_callback(move |event| {
            if let Event::Disconnected = event {
                tracing::warn!(
                    "the connection to NATS was lost, and the source reconnects. If this repeats, a \
                     message may have a header that is not UTF-8"
                );
                count.send_modify(|losses| *losses += 1);
            }
            std::future::ready(())
        });
        let context = config.connect_with(options, "source").await?;
        Ok(Self { context, losses })
    }

    /// Returns the number of times that the connection was lost.
    pub(super) fn losses(&self) -> u64 {
        *self.losses.borrow()
    }

    /// Waits until the connection has been lost more than `losses` times.
    pub(super) async fn lost(&self, losses: u64) {
        let mut now = self.losses.clone();
        if now.wait_for(|now| *now > losses).await.is_err() {
            // The client was shut down, so no more losses are counted. Never return here: each
            // caller also waits for a message of the server, and that wait ends with an error.
            std::future::pending::<()>().await;
        }
    }
}
