//! How RabbitMQ is told what became of one delivery.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use lapin::{
    Acker,
    options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions},
};
use tokio::{runtime::Handle, time::sleep};

use super::source::Session;
use crate::{Receipt, Settlement, TransportError};

/// A message is not held longer than this: after 30 minutes RabbitMQ takes the whole channel for dead.
const LONGEST_HOLD: Duration = Duration::from_secs(300);

const NO_DEAD_LETTER_EXCHANGE: &str = "the subscription names no dead-letter exchange, and without one RabbitMQ deletes a \
    rejected message: keep it with deadletters::reject and acknowledge it, or say dead_letter_exchange";

pub(super) struct RabbitMqReceipt {
    acker: Option<Acker>,
    counts_releases: bool,
    has_dead_letter_exchange: bool,
    /// The channel stays open as long as somebody may still settle.
    session: Arc<Session>,
}

impl RabbitMqReceipt {
    pub(super) fn new(acker: Acker, counts_releases: bool, has_dead_letter_exchange: bool, session: Arc<Session>) -> Self {
        Self {
            acker: Some(acker),
            counts_releases,
            has_dead_letter_exchange,
            session,
        }
    }
}

impl Receipt for RabbitMqReceipt {
    fn settle(mut self: Box<Self>, settlement: Settlement) -> BoxFuture<'static, Result<(), TransportError>> {
        if matches!(settlement, Settlement::Reject { .. }) && !self.has_dead_letter_exchange {
            // Dropped, it comes again.
            return Box::pin(async { Err(NO_DEAD_LETTER_EXCHANGE.into()) });
        }
        let acker = self.acker.take();
        let open = Arc::clone(&self.session);
        Box::pin(async move {
            let Some(acker) = acker else { return Ok(()) };
            match settlement {
                Settlement::Acknowledge => expect(acker.ack(BasicAckOptions::default()).await),
                Settlement::Retry { after } => requeue(Requeue::Failed, acker, after, open).await,
                Settlement::Release { after } => requeue(Requeue::Released, acker, after, open).await,
                Settlement::Reject { .. } => reject(&acker, false).await,
            }
        })
    }

    fn keeps_rejected(&self) -> bool {
        self.has_dead_letter_exchange
    }

    fn counts_releases(&self) -> bool {
        self.counts_releases
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
                let _ = release(&acker).await;
            });
        }
    }
}

/// Why a message goes back to its queue. A quorum queue of RabbitMQ 4.3 and later counts
/// `basic.reject` and not `basic.nack`; before 4.3 it counts both.
#[derive(Clone, Copy, Debug)]
enum Requeue {
    Failed,
    Released,
}

/// Puts the message back into its queue, after this time.
async fn requeue(why: Requeue, acker: Acker, after: Duration, session: Arc<Session>) -> Result<(), TransportError> {
    let put_back = async move {
        let settled = match why {
            Requeue::Failed => reject(&acker, true).await,
            Requeue::Released => release(&acker).await,
        };
        drop(session);
        settled
    };
    if after.is_zero() {
        return put_back.await;
    }
    // When this process ends before, the broker delivers again at once, and so nothing is lost.
    tokio::spawn(async move {
        sleep(after.min(LONGEST_HOLD)).await;
        if let Err(error) = put_back.await {
            tracing::debug!(%error, "a message that was held back comes again by itself");
        }
    });
    Ok(())
}

async fn reject(acker: &Acker, requeue: bool) -> Result<(), TransportError> {
    expect(acker.reject(BasicRejectOptions { requeue }).await)
}

async fn release(acker: &Acker) -> Result<(), TransportError> {
    let options = BasicNackOptions {
        requeue: true,
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
