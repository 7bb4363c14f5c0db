//! How a stream is told what became of one delivery.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Subject,
    jetstream::{AckKind, Context, message::PublishMessage},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, select, time::timeout};

use super::{NatsSubscription, link::Arrival, message};
use crate::{Message, Receipt, Settlement, TransportError};

/// A message whose dead letter was not taken comes again after this: at once would be as fast as handler and server can.
const UNBURIED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a settlement waits for its confirmation after the connection of its delivery was lost.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

const NO_DEAD_LETTER_SUBJECT: &str = "the subscription names no dead-letter subject, and without one a rejected message would \
    not come again: keep it with deadletters::reject and acknowledge it, or give a dead_letter";

const UNCONFIRMED: &str = "the connection of the delivery was lost, and the server has not \
    confirmed the settlement: it may deliver the message again";

pub(super) struct NatsReceipt {
    arrival: Arrival,
    /// Where to answer; taken when it is settled.
    reply: Option<Subject>,
    /// When it comes again if nobody settles it.
    again_after: Option<Duration>,
    message: Message,
    subscription: Arc<NatsSubscription>,
}

impl NatsReceipt {
    pub(super) fn new(arrival: Arrival, reply: Subject, message: Message, subscription: Arc<NatsSubscription>) -> Self {
        Self {
            arrival,
            reply: Some(reply),
            again_after: None,
            message,
            subscription,
        }
    }

    /// Settles the delivery and waits until the server confirms that.
    ///
    /// When the connection is lost, the settlement may be lost with it, and is sent again. A server
    /// that was restarted may have forgotten the delivery, and then it never confirms.
    async fn confirm(&self, reply: Subject, kind: AckKind) -> Result<(), TransportError> {
        let client = self.context().client();
        let settlement = Bytes::from(kind);
        if !self.arrival.is_lost() {
            select! {
                biased;
                confirmed = client.request(reply.clone(), settlement.clone()) => {
                    confirmed?;
                    return Ok(());
                }
                () = self.arrival.lost() => {}
            }
        }
        let Ok(confirmed) = timeout(CONFIRMED_WITHIN, client.request(reply, settlement)).await else {
            return Err(UNCONFIRMED.into());
        };
        confirmed?;
        Ok(())
    }

    fn context(&self) -> &Context {
        &self.arrival.link.context
    }

    /// A letter that was published and whose message comes again all the same is a duplicate for the server.
    async fn bury(&self, reason: &str) -> Result<(), TransportError> {
        let Some(subject) = &self.subscription.dead_letter else {
            return Err(NO_DEAD_LETTER_SUBJECT.into());
        };
        let headers = message::dead_letter(&self.message, &self.subscription.consumer, reason)?;
        let letter = PublishMessage::build()
            .payload(self.message.payload().clone())
            .headers(headers);
        self.context().send_publish(subject.clone(), letter).await?.await?;
        Ok(())
    }
}

impl Receipt for NatsReceipt {
    fn settle(mut self: Box<Self>, settlement: Settlement) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(async move {
            let kind = match settlement {
                Settlement::Acknowledge => AckKind::Ack,
                Settlement::Retry { after } | Settlement::Release { after } => nak(after),
                Settlement::Reject { reason } => {
                    // When that fails, dropping the receipt asks for the message again.
                    self.again_after = Some(UNBURIED_AGAIN_AFTER);
                    self.bury(&reason).await?;
                    AckKind::Term
                }
            };
            let Some(reply) = self.reply.take() else { return Ok(()) };
            self.confirm(reply, kind).await
        })
    }

    fn keeps_rejected(&self) -> bool {
        self.subscription.dead_letter.is_some()
    }
}

/// The message comes again after this time.
fn nak(after: Duration) -> AckKind {
    AckKind::Nak((!after.is_zero()).then_some(after))
}

/// Unsettled it would come again too, but only after the time that there is for it.
impl Drop for NatsReceipt {
    fn drop(&mut self) {
        let Some(reply) = self.reply.take() else { return };
        let (client, again_after) = (self.context().client(), self.again_after);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // Without a connection it comes again after its time.
                let _ = client.publish(reply, AckKind::Nak(again_after).into()).await;
            });
        }
    }
}
