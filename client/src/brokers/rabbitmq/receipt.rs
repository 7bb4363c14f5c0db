//! How RabbitMQ is told what became of one delivery.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use lapin::{
    Acker,
    options::{BasicAckOptions, BasicNackOptions},
};
use tokio::{runtime::Handle, time::sleep};

use super::source::Session;
use crate::{Receipt, Settlement, TransportError};

/// A message is not held longer than this: after 30 minutes RabbitMQ takes the whole channel for dead.
const LONGEST_HOLD: Duration = Duration::from_secs(300);

pub(super) struct RabbitMqReceipt {
    acker: Option<Acker>,
    /// The channel stays open as long as somebody may still settle.
    session: Arc<Session>,
}

impl RabbitMqReceipt {
    pub(super) fn new(acker: Acker, session: Arc<Session>) -> Self {
        Self {
            acker: Some(acker),
            session,
        }
    }
}

impl Receipt for RabbitMqReceipt {
    fn settle(mut self: Box<Self>, settlement: Settlement) -> BoxFuture<'static, Result<(), TransportError>> {
        let acker = self.acker.take();
        let session = Arc::clone(&self.session);
        Box::pin(async move {
            let Some(acker) = acker else { return Ok(()) };
            let _open = session;
            match settlement {
                Settlement::Acknowledge => expect(acker.ack(BasicAckOptions::default()).await),
                Settlement::Retry { after } if after.is_zero() => nack(&acker, true).await,
                Settlement::Retry { after } => {
                    // When this process ends before, the broker delivers again at once, and so nothing is lost.
                    tokio::spawn(async move {
                        sleep(after.min(LONGEST_HOLD)).await;
                        if let Err(error) = nack(&acker, true).await {
                            tracing::debug!(%error, "a message that was held back comes again by itself");
                        }
                        drop(_open);
                    });
                    Ok(())
                }
                Settlement::Reject { .. } => nack(&acker, false).await,
            }
        })
    }
}

/// Unsettled it would hold a place among the prefetched until the channel is closed.
impl Drop for RabbitMqReceipt {
    fn drop(&mut self) {
        let Some(acker) = self.acker.take() else { return };
        let session = Arc::clone(&self.session);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let _open = session;
                // The channel may be closed: then it comes again as well.
                let _ = nack(&acker, true).await;
            });
        }
    }
}

async fn nack(acker: &Acker, requeue: bool) -> Result<(), TransportError> {
    let options = BasicNackOptions {
        requeue,
        ..BasicNackOptions::default()
    };
    expect(acker.nack(options).await)
}

/// Settling on a channel that is closed is no error to lapin, but it has no effect.
fn expect(settled: lapin::Result<bool>) -> Result<(), TransportError> {
    if settled? {
        Ok(())
    } else {
        Err("the channel of the delivery is closed: the broker delivers again".into())
    }
}
