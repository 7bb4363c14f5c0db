//! The receipt of a delivery. It settles the delivery at the broker.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use idem_runtime::{
    Message, Receipt, Settlement,
    consumer::NearLimit,
    transport::{
        TransportError,
        withheld::{Withheld, Withhold},
    },
};
use lapin::{
    Acker,
    options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions},
};
use tokio::time::{Instant, sleep};

use super::session::Session;

/// The longest delay before a message is returned to its queue. RabbitMQ closes the channel of a
/// message that is not settled for 30 minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The delay before a message near its limit is redelivered after its receipt was dropped.
const DROPPED_AGAIN_AFTER: Duration = Duration::from_secs(1);

const NOT_RETURNED: &str = "the source has ended, and the message was not returned, because its \
    queue could delete it";

const NO_DEAD_LETTER_EXCHANGE: &str = "the subscription names no dead-letter exchange, and without \
    one RabbitMQ deletes a rejected message: keep the message with deadletters::reject and \
    acknowledge it, or set dead_letter_exchange";

pub(super) struct RabbitMqReceipt {
    /// Settles the delivery. `None` after the settlement.
    pub(super) acker: Option<Acker>,
    /// The data to withhold the message. `None` if the message is returned instead. It is always
    /// set for a message near its limit.
    pub(super) hold: Option<Hold>,
    pub(super) counts_releases: bool,
    /// Whether the queue does not count the return of a message. When a connection ends, every
    /// quorum queue counts the unsettled messages of this connection.
    pub(super) returns_are_free: bool,
    /// Whether the queue may delete the message when it counts another delivery.
    pub(super) is_near_limit: bool,
    pub(super) has_dead_letter_exchange: bool,
    /// Keeps the channel open until the delivery is settled.
    pub(super) session: Arc<Session>,
}

/// The data to redeliver a message without its broker.
pub(super) struct Hold {
    pub(super) message: Message,
    /// The time until which the message may stay unacknowledged.
    pub(super) until: Instant,
    pub(super) withheld: Arc<Withheld<RabbitMqReceipt>>,
}

impl RabbitMqReceipt {
    /// Returns whether the delivery can be settled: it is not settled, and its channel is open.
    fn is_usable(&self) -> bool {
        self.acker.as_ref().is_some_and(Acker::usable)
    }

    /// Returns whether the message can be returned without being counted.
    fn is_free_to_return(&self) -> bool {
        self.returns_are_free && self.is_usable()
    }

    /// Returns whether the queue may delete the message when it is returned. If the connection has
    /// ended, the queue may already have deleted the message, and this process then has the only
    /// copy.
    fn may_be_lost_when_returned(&self) -> bool {
        self.is_near_limit && !self.is_free_to_return()
    }

    /// Withholds the message, so that the source redelivers it and the queue does not count a
    /// return. Returns the receipt as the error if the message cannot or need not be withheld.
    fn withhold(self, after: Duration) -> Result<(), Self> {
        let Some(Hold {
            message,
            until,
            withheld,
        }) = &self.hold
        else {
            return Err(self);
        };
        let now = Instant::now();
        let is_over = *until <= now;
        if self.comes_by_itself() || is_over && self.is_free_to_return() {
            return Err(self);
        }
        let (message, until, withheld) = (message.clone(), *until, Arc::clone(withheld));
        let due = now
            .checked_add(after)
            .unwrap_or(until.max(now + LONGEST_PAUSE));
        // A message near its limit is never returned when the time to withhold it is over. Instead
        // the source redelivers it, so that the consumer can keep it.
        let (due, until) = match (self.is_near_limit, is_over) {
            (false, _) => (due, Some(until)),
            (true, false) => (due.min(until), None),
            (true, true) => (due, None),
        };
        withheld.add(message, self, due, until)
    }
}

impl Withhold for RabbitMqReceipt {
    fn comes_by_itself(&self) -> bool {
        !self.is_usable() && !self.is_near_limit
    }

    async fn give_back(mut self) -> bool {
        let Some(acker) = self.acker.take() else {
            return false;
        };
        let returned = release(&acker).await;
        if let Err(error) = &returned {
            tracing::debug!(
                error,
                "cannot return a message: the broker redelivers it by itself"
            );
        }
        returned.is_ok()
    }
}

impl Receipt for RabbitMqReceipt {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        if matches!(settlement, Settlement::Reject { .. }) && !self.has_dead_letter_exchange {
            // Dropping the receipt returns the message.
            return Box::pin(async { Err(NO_DEAD_LETTER_EXCHANGE.into()) });
        }
        let (mut receipt, mut settlement) = (*self, settlement);
        if let Settlement::Retry { after } = settlement
            && receipt.is_near_limit
            && !receipt.is_usable()
        {
            // The connection has ended, and the queue may have deleted the message then. Withhold
            // the message, so that the source redelivers it.
            settlement = Settlement::Release { after };
        }
        if let Settlement::Release { after } = settlement {
            receipt = match receipt.withhold(after) {
                Ok(()) => return Box::pin(async { Ok(()) }),
                Err(receipt) => receipt,
            };
            if receipt.may_be_lost_when_returned() {
                receipt.acker = None;
                return Box::pin(async { Err(NOT_RETURNED.into()) });
            }
            if receipt.hold.is_some() {
                // The source has ended, or the time to withhold the message is over, so return it
                // at once.
                settlement = Settlement::RELEASE;
            }
        }
        let acker = receipt.acker.take();
        let open = Arc::clone(&receipt.session);
        Box::pin(async move {
            let Some(acker) = acker else { return Ok(()) };
            match settlement {
                Settlement::Acknowledge => expect(acker.ack(BasicAckOptions::default()).await),
                Settlement::Reject { .. } => reject(&acker, false).await,
                // A quorum queue of RabbitMQ 4.3 or later counts `basic.reject` but not
                // `basic.nack`. Before 4.3 it counts both.
                Settlement::Retry { after } => {
                    let put_back = async move {
                        let _open = open;
                        reject(&acker, true).await
                    };
                    later(after, put_back).await
                }
                Settlement::Release { after } => {
                    let put_back = async move {
                        let _open = open;
                        release(&acker).await
                    };
                    later(after, put_back).await
                }
            }
        })
    }

    fn keeps_rejected(&self) -> bool {
        self.has_dead_letter_exchange
    }

    fn counts_releases(&self) -> bool {
        // This also applies to withheld messages, because a shutdown returns them to the queue.
        self.counts_releases
    }

    fn near_limit(&self) -> Option<NearLimit> {
        let is_held = |hold: &Hold| Instant::now() < hold.until && hold.withheld.is_open();
        self.is_near_limit.then(|| NearLimit {
            is_safe_to_release: self.is_free_to_return() || self.hold.as_ref().is_none_or(is_held),
            is_withheld: true,
            is_handed_over_at_close: true,
        })
    }
}

/// Returns an unsettled message to its queue. Without this return, the message would take one of
/// the `prefetch` places until the channel is closed. A message near its limit is withheld, so that
/// the source redelivers it. After the end of the source such a message stays unsettled if its
/// queue counts returns.
impl Drop for RabbitMqReceipt {
    fn drop(&mut self) {
        let Some(mut acker) = self.acker.take() else {
            return;
        };
        let session = Arc::clone(&self.session);
        if self.is_near_limit {
            let again = Self {
                acker: Some(acker),
                hold: self.hold.take(),
                session: Arc::clone(&session),
                ..*self
            };
            let Err(mut receipt) = again.withhold(DROPPED_AGAIN_AFTER) else {
                return;
            };
            let may_be_lost = receipt.may_be_lost_when_returned();
            match receipt.acker.take() {
                Some(unsettled) if !may_be_lost => acker = unsettled,
                _ => return,
            }
        }
        let runtime = session.runtime.clone();
        runtime.spawn(async move {
            let _open = session;
            // If the channel is closed, the broker redelivers the message by itself.
            let _ = release(&acker).await;
        });
    }
}

/// Returns a message to its queue after this time, with `put_back`.
async fn later(
    after: Duration,
    put_back: impl Future<Output = Result<(), TransportError>> + Send + 'static,
) -> Result<(), TransportError> {
    if after.is_zero() {
        return put_back.await;
    }
    // If this process ends before this time, the broker redelivers the message at once.
    tokio::spawn(async move {
        sleep(after.min(LONGEST_PAUSE)).await;
        if let Err(error) = put_back.await {
            tracing::debug!(%error, "cannot return a message: the broker redelivers it by itself");
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

/// Returns an error for a settlement on a closed channel, which lapin reports only as `false`.
fn expect(settled: lapin::Result<bool>) -> Result<(), TransportError> {
    if settled? {
        Ok(())
    } else {
        Err("the channel of the delivery is closed: the broker redelivers the message".into())
    }
}
