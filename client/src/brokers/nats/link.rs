//! The connection of a source, and whether a delivery came before it was lost.

use async_nats::{ConnectOptions, Event, jetstream::Context};
use tokio::sync::watch;

use super::NatsConfig;
use crate::TransportError;

/// The connection of a source. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) context: Context,
    losses: watch::Receiver<u64>,
}

/// The connection over which a delivery came.
pub(super) struct Arrival {
    pub(super) link: Link,
    /// At least so often the connection had been lost before.
    losses: u64,
}

impl Link {
    pub(super) async fn connect(config: &NatsConfig) -> Result<Self, TransportError> {
        let (count, losses) = watch::channel(0);
        let options = ConnectOptions::new().event_callback(move |event| {
            if let Event::Disconnected = event {
                count.send_modify(|losses| *losses += 1);
            }
            std::future::ready(())
        });
        let context = config.connect_with(options, "source").await?;
        Ok(Self { context, losses })
    }

    /// How often the connection was lost.
    pub(super) fn losses(&self) -> u64 {
        *self.losses.borrow()
    }

    pub(super) fn arrival(self, losses: u64) -> Arrival {
        Arrival { link: self, losses }
    }
}

impl Arrival {
    /// Whether the connection was lost after the delivery, or may have been.
    pub(super) fn is_lost(&self) -> bool {
        self.link.losses() > self.losses
    }

    /// Waits until the connection was lost after the delivery.
    pub(super) async fn lost(&self) {
        let mut losses = self.link.losses.clone();
        if losses.wait_for(|now| *now > self.losses).await.is_err() {
            // The client has ended, so no loss will be counted any more. The caller's request
            // fails.
            std::future::pending::<()>().await;
        }
    }
}
