//! How RabbitMQ is told what became of one delivery.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use lapin::{
    Acker,
    options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions},
};
use tokio::time::{Instant, sleep};

use super::consuming::Session;
use crate::{
    Message, Receipt, Settlement, TransportError,
    brokers::withheld::{Withheld, Withhold},
};

/// A message does not wait longer than this before it returns to its queue: after 30 minutes
/// RabbitMQ closes the channel.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The pause before a message near its limit comes again whose receipt was dropped.
const DROPPED_AGAIN_AFTER: Duration = Duration::from_secs(1);

const NOT_RETURNED: &str =
    "the source has ended, and the message is not returned, because its queue may delete it then";

const NO_DEAD_LETTER_EXCHANGE: &str = "the subscription names no dead-letter exchange, and without one RabbitMQ deletes a \
    rejected message: keep it with deadletters::reject and acknowledge it, or say dead_letter_exchange";

pub(super) struct RabbitMqReceipt {
    acker: Option<Acker>,
    /// Where the message waits when it is released. Near its limit each message has one.
    hold: Option<Hold>,
    counts_releases: bool,
    /// The queue does not count a message that is returned. It counts one whose connection ends.
    returns_are_free: bool,
    /// Whether the queue may delete the message when it counts another delivery.
    is_near_limit: bool,
    has_dead_letter_exchange: bool,
    /// The channel stays open as long as a delivery may be settled.
    session: Arc<Session>,
}

/// What it takes to deliver a message again without its broker.
pub(super) struct Hold {
    pub(super) message: Message,
    /// How long the message may stay unacknowledged.
    pub(super) until: Instant,
    pub(super) withheld: Arc<Withheld<RabbitMqReceipt>>,
}

impl RabbitMqReceipt {
    pub(super) fn new(
        acker: Acker,
        hold: Option<Hold>,
        counts_releases: bool,
        returns_are_free: bool,
        is_near_limit: bool,
        has_dead_letter_exchange: bool,
        session: Arc<Session>,
    ) -> Self {
        Self {
            acker: Some(acker),
            hold,
            counts_releases,
            returns_are_free,
            is_near_limit,
            has_dead_letter_exchange,
            session,
        }
    }

    pub(super) fn is_near_limit(&self) -> bool {
        self.is_near_limit
    }

    /// Whether a settlement has an effect: the channel of the delivery is open.
    fn is_usable(&self) -> bool {
        self.acker.as_ref().is_some_and(Acker::usable)
    }

    /// Whether the message can be returned and is not counted for that.
    fn is_free_to_return(&self) -> bool {
        self.returns_are_free && self.is_usable()
    }

    /// Whether a return is counted and may be the end of the message, which this process still has.
    /// The end of its connection may have been the end already.
    fn may_be_lost_when_returned(&self) -> bool {
        self.is_near_limit && !self.is_free_to_return()
    }

    /// Has the source deliver the message again, so that the queue does not count a return.
    /// Otherwise returns the receipt.
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
        // Near its limit the message does not return by itself. It comes again when its hold is
        // over, so that the consumer can keep it.
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
                "a message that cannot be returned comes again by itself"
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
            // Dropped, it comes again.
            return Box::pin(async { Err(NO_DEAD_LETTER_EXCHANGE.into()) });
        }
        let (mut receipt, mut settlement) = (*self, settlement);
        if let Settlement::Retry { after } = settlement
            && receipt.is_near_limit
            && !receipt.is_usable()
        {
            // Its queue may have deleted it.
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
                // The source has ended, or the message was withheld for as long as it may be.
                settlement = Settlement::RELEASE;
            }
        }
        let acker = receipt.acker.take();
        let open = Arc::clone(&receipt.session);
        Box::pin(async move {
            let Some(acker) = acker else { return Ok(()) };
            match settlement {
                Settlement::Acknowledge => expect(acker.ack(BasicAckOptions::default()).await),
                Settlement::Retry { after } => requeue(Requeue::Failed, acker, after, open).await,
                Settlement::Release { after } => {
                    requeue(Requeue::Released, acker, after, open).await
                }
                Settlement::Reject { .. } => reject(&acker, false).await,
            }
        })
    }

    fn keeps_rejected(&self) -> bool {
        self.has_dead_letter_exchange
    }

    fn counts_releases(&self) -> bool {
        // Also where releases are withheld: a shutdown returns messages.
        self.counts_releases
    }

    fn is_near_limit(&self) -> bool {
        self.is_near_limit
    }

    fn is_safe_to_release(&self) -> bool {
        let is_held = |hold: &Hold| Instant::now() < hold.until && hold.withheld.is_open();
        self.is_free_to_return() || self.hold.as_ref().is_none_or(is_held)
    }

    fn withholds_near_limit(&self) -> bool {
        true
    }
}

/// Returns the message: unsettled it would hold a place among the prefetched until the channel is
/// closed. Near its limit the source delivers it again; after the end of the source it stays
/// unsettled where its queue may delete it.
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
            // The channel may be closed: then it comes again as well.
            let _ = release(&acker).await;
        });
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
async fn requeue(
    why: Requeue,
    acker: Acker,
    after: Duration,
    session: Arc<Session>,
) -> Result<(), TransportError> {
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
        sleep(after.min(LONGEST_PAUSE)).await;
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
