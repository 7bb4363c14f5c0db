//! How a stream is told what became of one delivery.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Subject,
    jetstream::{AckKind, Context, message::PublishMessage},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::{
    select,
    time::{Instant, timeout},
};

use super::{message, session::Session, terms::Terms};
use crate::{Delivery, Message, Receipt, Settlement, TransportError, brokers::withheld::Withhold};

/// The pause before a message comes again whose dead letter was not taken, or whose receipt was
/// dropped at its last delivery. Without one it would go round as fast as handler and server can.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a settlement waits for its confirmation after the connection of its delivery was lost.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// As long as a message is withheld at most, for a pause that no clock can add.
const LONGEST_PAUSE: Duration = Duration::from_secs(365 * 86_400);

const NO_DEAD_LETTER_SUBJECT: &str = "the subscription names no dead-letter subject, and without one a rejected message would \
    not come again: keep it with deadletters::reject and acknowledge it, or give a dead_letter";

const NOT_RETURNED: &str = "the source has ended, and this was the last delivery of the message: NATS does not deliver it \
    again, and it stays in the stream";

const UNCONFIRMED: &str = "the connection of the delivery was lost, and the server has not \
    confirmed the settlement: it may deliver the message again";

pub(super) struct NatsReceipt {
    session: Arc<Session>,
    /// How often the connection had been lost when the delivery came, at least.
    losses: u64,
    /// The place of the message in its stream.
    place: i64,
    /// The subject that takes the settlement; taken with it.
    reply: Option<Subject>,
    /// The pause before the message comes again when this is dropped.
    again_after: Option<Duration>,
    message: Message,
    /// Whether the server counts each return, and stops at a limit.
    is_limited: bool,
    is_near_limit: bool,
    /// Whether the server delivers the message no more when it is returned.
    is_last: bool,
}

impl NatsReceipt {
    /// Holds a delivery, which came after so many losses of the connection.
    pub(super) fn hold(
        session: Arc<Session>,
        losses: u64,
        reply: Subject,
        message: &Message,
        terms: &Terms,
    ) -> Self {
        let place = message.coordinates().map_or(0, |at| at.offset);
        let delivery = message.deliveries().unwrap_or(1);
        session
            .held
            .add(place, reply.clone(), terms.progress_every(delivery));
        Self {
            session,
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

    /// Has the source deliver the message again, so that the server does not count a return.
    /// Otherwise returns the receipt.
    fn withhold(self, after: Duration) -> Result<(), Self> {
        if !self.is_limited || !self.is_usable() {
            return Err(self);
        }
        let (session, message) = (Arc::clone(&self.session), self.message.clone());
        let now = Instant::now();
        let due = now.checked_add(after).unwrap_or(now + LONGEST_PAUSE);
        session.withheld.add(message, self, due, None)
    }

    /// The dead letter was not taken. A return would count, and after the last one the server
    /// delivers the message no more: with a limit it stays here.
    fn ask_again(mut self) {
        // Where the message is not withheld, dropping the receipt asks the server for it.
        self.again_after = Some(AGAIN_AFTER);
        drop(self.withhold(AGAIN_AFTER));
    }

    /// Whether no other delivery has taken its place.
    pub(super) fn is_usable(&self) -> bool {
        let reply = self.reply.as_ref();
        reply.is_some_and(|reply| self.session.held.has(self.place, reply))
    }

    /// Whether a return would be the end of the message, and no other delivery has taken its place.
    fn is_lost_when_returned(&self) -> bool {
        self.is_last && self.is_usable()
    }

    /// Settles the delivery. A return has no effect when the message has come again since.
    async fn finish(&mut self, kind: AckKind) -> Result<(), TransportError> {
        let Some(reply) = self.reply.take() else {
            return Ok(());
        };
        let is_held = self.session.held.remove(self.place, &reply);
        if !is_held && matches!(kind, AckKind::Nak(_)) {
            return Ok(());
        }
        self.confirm(reply, kind).await
    }

    /// Settles the delivery and waits until the server confirms that.
    ///
    /// When the connection is lost, the settlement may be lost with it, and is sent again. A server
    /// that was restarted may have forgotten the delivery, and then it never confirms.
    async fn confirm(&self, reply: Subject, kind: AckKind) -> Result<(), TransportError> {
        let client = self.context().client();
        let settlement = Bytes::from(kind);
        let link = &self.session.link;
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
        &self.session.link.context
    }

    /// A letter that was published and whose message comes again all the same is a duplicate for
    /// the server.
    async fn bury(&self, reason: &str) -> Result<(), TransportError> {
        let Some(subject) = &self.session.subscription.dead_letter else {
            return Err(NO_DEAD_LETTER_SUBJECT.into());
        };
        let headers =
            message::dead_letter(&self.message, &self.session.subscription.consumer, reason)?;
        let letter = PublishMessage::build()
            .payload(self.message.payload().clone())
            .headers(headers);
        self.context()
            .send_publish(subject.clone(), letter)
            .await?
            .await?;
        Ok(())
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
                "a message that cannot be returned comes again by itself"
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
        self.session.subscription.dead_letter.is_some()
    }

    fn is_near_limit(&self) -> bool {
        self.is_near_limit
    }

    /// A last delivery is not: it would be lost with this process, and only the database can keep
    /// it.
    fn is_safe_to_release(&self) -> bool {
        // A return has no effect when the message has come again since.
        !self.is_usable() || self.is_limited && !self.is_last && self.session.withheld.is_open()
    }

    fn withholds_near_limit(&self) -> bool {
        true
    }
}

/// The message comes again after this time.
fn nak(after: Duration) -> AckKind {
    AckKind::Nak((!after.is_zero()).then_some(after))
}

/// Returns the message: it would come again only after its time. At its last delivery the source
/// delivers it again. After the end of the source NATS does not deliver it again, and the message
/// stays in the stream.
impl Drop for NatsReceipt {
    fn drop(&mut self) {
        let is_lost_when_returned = self.is_lost_when_returned();
        let Some(reply) = self.reply.take() else {
            return;
        };
        if is_lost_when_returned {
            let again = Self {
                session: Arc::clone(&self.session),
                reply: Some(reply),
                message: self.message.clone(),
                ..*self
            };
            if let Err(mut receipt) = again.withhold(AGAIN_AFTER)
                && let Some(reply) = receipt.reply.take()
            {
                // Its place at the server is free when its time is over.
                self.session.held.remove(self.place, &reply);
            }
            return;
        }
        if !self.session.held.remove(self.place, &reply) {
            // It has come again since.
            return;
        }
        let (client, again_after) = (self.context().client(), self.again_after);
        self.session.runtime.spawn(async move {
            // Without a connection it comes again after its time.
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
