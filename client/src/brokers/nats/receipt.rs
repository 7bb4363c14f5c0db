//! How a stream is told what became of one delivery.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Subject,
    jetstream::{AckKind, message::PublishMessage},
};
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use super::{NatsSubscription, link::Link, message};
use crate::{Message, Receipt, Settlement, TransportError};

/// A message whose dead letter was not taken comes again after this: at once would be as fast as handler and server can.
const UNBURIED_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) struct NatsReceipt {
    link: Link,
    /// How often the connection had been lost when this was delivered.
    losses: u64,
    /// Where to answer; taken when it is settled.
    reply: Option<Subject>,
    /// When it comes again if nobody settles it.
    again_after: Option<Duration>,
    message: Message,
    subscription: Arc<NatsSubscription>,
}

impl NatsReceipt {
    pub(super) fn new(link: Link, losses: u64, reply: Subject, message: Message, subscription: Arc<NatsSubscription>) -> Self {
        Self {
            link,
            losses,
            reply: Some(reply),
            again_after: None,
            message,
            subscription,
        }
    }

    /// The server answers an answer that asks for it: now it is known to be settled. A server that was restarted may have
    /// forgotten a delivery of an earlier connection, and does not answer for it then; so it is told, and not asked.
    async fn tell(&self, reply: Subject, kind: AckKind) -> Result<(), TransportError> {
        let client = self.link.context.client();
        tokio::select! {
            biased;
            () = self.link.lost_since(self.losses) => {}
            confirmed = client.request(reply.clone(), kind.into()) => return Ok(confirmed.map(drop)?),
        }
        client.publish(reply, kind.into()).await?;
        Err("the connection of the delivery was lost: the server may deliver again".into())
    }

    /// A letter that was published and whose message comes again all the same is a duplicate for the server.
    async fn bury(&self, reason: &str) -> Result<(), TransportError> {
        let Some(subject) = &self.subscription.dead_letter else {
            return Ok(());
        };
        let headers = message::dead_letter(&self.message, &self.subscription.consumer, reason)?;
        let letter = PublishMessage::build()
            .payload(self.message.payload().clone())
            .headers(headers);
        self.link.context.send_publish(subject.clone(), letter).await?.await?;
        Ok(())
    }
}

impl Receipt for NatsReceipt {
    fn settle(mut self: Box<Self>, settlement: Settlement) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(async move {
            let kind = match settlement {
                Settlement::Acknowledge => AckKind::Ack,
                Settlement::Retry { after } | Settlement::Release { after } => AckKind::Nak((!after.is_zero()).then_some(after)),
                Settlement::Reject { reason } => {
                    // When that fails, dropping the receipt asks for the message again.
                    self.again_after = Some(UNBURIED_AGAIN_AFTER);
                    self.bury(&reason).await?;
                    AckKind::Term
                }
            };
            let Some(reply) = self.reply.take() else { return Ok(()) };
            self.tell(reply, kind).await
        })
    }
}

/// Unsettled it would come again too, but only after the time that there is for it.
impl Drop for NatsReceipt {
    fn drop(&mut self) {
        let Some(reply) = self.reply.take() else { return };
        let (client, again_after) = (self.link.context.client(), self.again_after);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // Without a connection it comes again after its time.
                let _ = client.publish(reply, AckKind::Nak(again_after).into()).await;
            });
        }
    }
}
