//! The receipt of a delivery. It settles the delivery at the server.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Subject,
    jetstream::{AckKind, Context, message::PublishMessage},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use idem_runtime::{
    Delivery, Message, Receipt, Settlement,
    consumer::NearLimit,
    transport::{
        TransportError,
        withheld::{Withheld, Withhold},
    },
};
use tokio::{
    runtime::Handle,
    select,
    time::{Instant, timeout},
};

use super::{
    NatsSubscription,
    held::Held,
    link::Link,
    message,
    publisher::{NOT_FROM_A_STREAM, is_from_a_stream},
    terms::Terms,
};

/// The delay before a message is redelivered after its dead letter could not be published, or after
/// its receipt was dropped at the last delivery. Without a delay the handler and the server would
/// repeat this in a tight loop.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The longest time that a settlement waits for its confirmation after the connection of its
/// delivery was lost.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// The time that a message is withheld if its delay is too long to be added to the current time.
const LONGEST_PAUSE: Duration = Duration::from_secs(365 * 86_400);

const NO_DEAD_LETTER_SUBJECT: &str = "the subscription names no dead-letter subject, and without \
    one a rejected message would not be redelivered: keep the message with deadletters::reject and \
    acknowledge it, or set dead_letter";

const NOT_RETURNED: &str = "the source has ended, and this was the last delivery of the message: \
    NATS does not redeliver it, and it stays in the stream";

const UNCONFIRMED: &str = "the connection of the delivery was lost, and the server has not \
    confirmed the settlement: the message may be redelivered";

/// What a source and its receipts share: the connection, and the deliveries that are not settled.
pub(super) struct Unsettled {
    pub(super) link: Link,
    pub(super) subscription: Arc<NatsSubscription>,
    pub(super) held: Arc<Held>,
    pub(super) withheld: Withheld<NatsReceipt>,
    /// The runtime of the source. The source and its receipts can be dropped outside of it.
    pub(super) runtime: Handle,
}

pub(super) struct NatsReceipt {
    unsettled: Arc<Unsettled>,
    /// The smallest possible number of times that the connection was lost before the delivery.
    losses: u64,
    /// The place of the message in its stream.
    place: i64,
    /// The subject for the settlement. `None` after the settlement.
    reply: Option<Subject>,
    /// The delay before the server redelivers the message when this receipt is dropped.
    again_after: Option<Duration>,
    message: Message,
    /// Whether the server counts each return and stops delivering the message at a limit.
    is_limited: bool,
    is_near_limit: bool,
    /// Whether the server does not redeliver the message when it is returned.
    is_last: bool,
}

impl NatsReceipt {
    /// Holds a delivery that arrived after the connection was lost at least `losses` times.
    pub(super) fn hold(
        unsettled: Arc<Unsettled>,
        losses: u64,
        reply: Subject,
        message: &Message,
        terms: &Terms,
    ) -> Self {
        let place = message.coordinates().map_or(0, |at| at.offset);
        let delivery = message.deliveries().unwrap_or(1);
        unsettled
            .held
            .add(place, reply.clone(), terms.progress_every(delivery));
        Self {
            unsettled,
            losses,
            place,
            reply: Some(reply),
            again_after: None,
            message: message.clone(),
            is_limited: terms.limit_deliveries(),
            is_near_limit: terms.is_near_limit(delivery),
            is_last: terms.is_last(delivery),
        }
    }

    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    pub(super) fn into_delivery(self) -> Delivery {
        Delivery::new(self.message.clone(), self)
    }

    /// Withholds the message, so that the source redelivers it and the server does not count a
    /// return. Returns the receipt as the error if the message cannot or need not be withheld.
    fn withhold(self, after: Duration) -> Result<(), Self> {
        if !self.is_limited || !self.is_usable() {
            return Err(self);
        }
        let (unsettled, message) = (Arc::clone(&self.unsettled), self.message.clone());
        let now = Instant::now();
        let due = now.checked_add(after).unwrap_or(now + LONGEST_PAUSE);
        unsettled.withheld.add(message, self, due, None)
    }

    /// Causes the redelivery of the message after its dead letter could not be published. If the
    /// durable consumer has a limit of deliveries, the message is withheld, because the server
    /// counts a return and does not redeliver the message after the last delivery.
    fn ask_again(mut self) {
        // If the message is not withheld, dropping the receipt returns the message to the server,
        // which redelivers it after this delay.
        self.again_after = Some(AGAIN_AFTER);
        drop(self.withhold(AGAIN_AFTER));
    }

    /// Returns whether the delivery is not settled and not replaced by a redelivery.
    pub(super) fn is_usable(&self) -> bool {
        let reply = self.reply.as_ref();
        reply.is_some_and(|reply| self.unsettled.held.has(self.place, reply))
    }

    /// Returns whether the server would not redeliver the message after a return. False if a
    /// redelivery has replaced this delivery.
    fn is_lost_when_returned(&self) -> bool {
        self.is_last && self.is_usable()
    }

    /// Settles the delivery. A return does nothing if the message has been redelivered in the
    /// meantime.
    async fn finish(&mut self, kind: AckKind) -> Result<(), TransportError> {
        let Some(reply) = self.reply.take() else {
            return Ok(());
        };
        let is_held = self.unsettled.held.remove(self.place, &reply);
        if !is_held && matches!(kind, AckKind::Nak(_)) {
            return Ok(());
        }
        self.confirm(reply, kind).await
    }

    /// Sends a settlement and waits until the server confirms it.
    ///
    /// When the connection is lost, the settlement can be lost with it, so it is sent again. A
    /// server that was restarted can forget the delivery, and then it never confirms the
    /// settlement. So the second attempt has a time limit.
    async fn confirm(&self, reply: Subject, kind: AckKind) -> Result<(), TransportError> {
        let client = self.context().client();
        let settlement = Bytes::from(kind);
        let link = &self.unsettled.link;
        if link.losses() <= self.losses {
            select! {
                biased;
                confirmed = client.request(reply.clone(), settlement.clone()) => {
                    confirmed?;
                    return Ok(());
                }
                () = link.lost(self.losses) => {}
            }
        }
        let Ok(confirmed) = timeout(CONFIRMED_WITHIN, client.request(reply, settlement)).await
        else {
            return Err(UNCONFIRMED.into());
        };
        confirmed?;
        Ok(())
    }

    fn context(&self) -> &Context {
        &self.unsettled.link.context
    }

    /// Publishes the dead letter of the message, and waits until its stream confirms it. If the
    /// message is nevertheless redelivered and rejected again, the server recognizes the second
    /// letter as a duplicate.
    async fn bury(&self, reason: &str) -> Result<(), TransportError> {
        let Some(subject) = &self.unsettled.subscription.dead_letter else {
            return Err(NO_DEAD_LETTER_SUBJECT.into());
        };
        let headers =
            message::dead_letter(&self.message, &self.unsettled.subscription.consumer, reason)?;
        let letter = PublishMessage::build()
            .payload(self.message.payload().clone())
            .headers(headers);
        let sent = self.context().send_publish(subject.clone(), letter);
        if is_from_a_stream(&sent.await?.await?) {
            Ok(())
        } else {
            Err(NOT_FROM_A_STREAM.into())
        }
    }
}

impl Withhold for NatsReceipt {
    fn comes_by_itself(&self) -> bool {
        !self.is_usable()
    }

    async fn give_back(mut self) -> bool {
        let returned = self.finish(nak(Duration::ZERO)).await;
        if let Err(error) = &returned {
            tracing::debug!(
                error,
                "cannot return a message: the server redelivers it by itself"
            );
        }
        returned.is_ok()
    }
}

impl Receipt for NatsReceipt {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        let mut receipt = *self;
        if let Settlement::Release { after } = settlement {
            receipt = match receipt.withhold(after) {
                Ok(()) => return Box::pin(async { Ok(()) }),
                Err(receipt) => receipt,
            };
            if receipt.is_lost_when_returned() {
                return Box::pin(async { Err(NOT_RETURNED.into()) });
            }
        }
        Box::pin(async move {
            let kind = match settlement {
                Settlement::Acknowledge => AckKind::Ack,
                Settlement::Retry { after } | Settlement::Release { after } => nak(after),
                Settlement::Reject { reason } => {
                    if let Err(error) = receipt.bury(&reason).await {
                        receipt.ask_again();
                        return Err(error);
                    }
                    AckKind::Term
                }
            };
            receipt.finish(kind).await
        })
    }

    fn keeps_rejected(&self) -> bool {
        self.unsettled.subscription.dead_letter.is_some()
    }

    fn near_limit(&self) -> Option<NearLimit> {
        self.is_near_limit.then(|| NearLimit {
            // A return does nothing if the message has been redelivered in the meantime. If this
            // process ended, the message would be lost at its last delivery, so the consumer must
            // keep it in the database.
            is_safe_to_release: !self.is_usable()
                || self.is_limited && !self.is_last && self.unsettled.withheld.is_open(),
            is_withheld: true,
            // When the source is closed, it returns the message before the last delivery.
            is_handed_over_at_close: self.is_last,
        })
    }
}

/// Returns the settlement that redelivers the message after this time.
fn nak(after: Duration) -> AckKind {
    AckKind::Nak((!after.is_zero()).then_some(after))
}

/// Returns an unsettled message to the server. Without this return, the server would redeliver the
/// message only after `ack_wait`. A message at its last delivery is withheld, so that the source
/// redelivers it. After the end of the source such a message is not redelivered, and it stays in
/// the stream.
impl Drop for NatsReceipt {
    fn drop(&mut self) {
        let is_lost_when_returned = self.is_lost_when_returned();
        let Some(reply) = self.reply.take() else {
            return;
        };
        if is_lost_when_returned {
            let again = Self {
                unsettled: Arc::clone(&self.unsettled),
                reply: Some(reply),
                message: self.message.clone(),
                ..*self
            };
            if let Err(mut receipt) = again.withhold(AGAIN_AFTER)
                && let Some(reply) = receipt.reply.take()
            {
                // The message cannot be withheld, so it stays unsettled. After `ack_wait` the
                // server no longer counts it against `max_ack_pending`.
                self.unsettled.held.remove(self.place, &reply);
            }
            return;
        }
        if !self.unsettled.held.remove(self.place, &reply) {
            // The message has been redelivered in the meantime, so there is nothing to return.
            return;
        }
        let (client, again_after) = (self.context().client(), self.again_after);
        self.unsettled.runtime.spawn(async move {
            // Without a connection the server redelivers the message after `ack_wait`.
            if client
                .publish(reply, AckKind::Nak(again_after).into())
                .await
                .is_ok()
            {
                let _ = client.flush().await;
            }
        });
    }
}
