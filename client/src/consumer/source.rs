//! Where messages come from. Small, so that one's own transport takes 30 lines.

use std::{fmt, future::Future};

use futures_util::{FutureExt, future::BoxFuture};

use crate::{Destination, Message, Settlement};

/// An error of a broker or of the way to it.
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// A stream of deliveries from a broker.
pub trait Source: Send + 'static {
    /// Waits for the next delivery; `None` when there will never be one again. That ends the
    /// consumer with [`Error::SourceEnded`](crate::Error::SourceEnded); an error that directly
    /// precedes it is its cause.
    ///
    /// Must be cancel safe: whoever drops the future loses no message that the broker will not
    /// deliver again. After an error the caller waits a little and asks again; a source that lost
    /// its connection connects anew then.
    fn next(&mut self) -> impl Future<Output = Result<Option<Delivery>, TransportError>> + Send;

    /// Returns to the broker what was fetched ahead and not delivered. Called once, after all that
    /// was delivered is settled. There is nothing to return unless given.
    fn close(&mut self) -> impl Future<Output = Closed> + Send {
        async { Closed::default() }
    }

    /// The destination whose durable inbox it reads; none unless given. A consumer of any other
    /// source also looks for messages of its destinations that were requeued.
    fn inbox(&self) -> Option<&Destination> {
        None
    }

    /// Whether messages of one key are handled one after the other unless the consumer [says
    /// otherwise](crate::Consumer::ordered_by_key): for sources that deliver them in order. False
    /// unless given.
    fn keeps_order_of_keys(&self) -> bool {
        false
    }
}

/// What became of the messages that a source had, and had not delivered, when it was closed.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Closed {
    /// How many were returned to the broker.
    pub returned: u64,
    /// Messages near their limit of deliveries: when they are returned, the broker may delete them.
    /// They were not returned. The consumer rejects them, so that they are kept.
    pub near_limit: Vec<Delivery>,
}

impl Closed {
    /// So many messages were returned.
    pub fn returned(messages: u64) -> Self {
        Self {
            returned: messages,
            near_limit: Vec::new(),
        }
    }

    /// These messages were not returned.
    #[must_use]
    pub fn near_limit(mut self, deliveries: Vec<Delivery>) -> Self {
        self.near_limit = deliveries;
        self
    }
}

/// How a broker is told what became of one delivery.
pub trait Receipt: Send + 'static {
    /// Settles the delivery. When that fails the broker delivers again, and the claim finds the
    /// duplicate.
    ///
    /// A receipt that is dropped unsettled counts as not acknowledged.
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>>;

    /// Whether those who deliver look after failures themselves: they count them, know when the
    /// message comes again and when it shall not, and keep the order of its key meanwhile. Then the
    /// consumer does not, and [`failed`](Self::failed) is what it says.
    fn is_in_charge(&self) -> bool {
        false
    }

    /// Whether [`Reject`](Settlement::Reject) keeps the message, at a place that the user has
    /// named. Otherwise, and unless given, the consumer keeps a rejected message in
    /// `idem.dead_letter` and acknowledges it after that.
    fn keeps_rejected(&self) -> bool {
        false
    }

    /// Whether the message's [`deliveries`](Message::deliveries) include those after which it was
    /// [released](Settlement::Release).
    fn counts_releases(&self) -> bool {
        true
    }

    /// Whether a limit of deliveries lets the broker delete the message at its next return. The
    /// consumer rejects such a message when it fails, so that the message is kept. False unless
    /// given.
    fn is_near_limit(&self) -> bool {
        false
    }

    /// Whether a [release](Settlement::Release) costs the message no delivery now: the source
    /// withholds the message, or the broker does not count the return. The consumer calls this when
    /// a message [near its limit](Self::is_near_limit) shall come again for what was no failure of
    /// it, or when the consumer stops. The consumer releases the message if this is true, and
    /// rejects it otherwise. False unless given.
    fn is_safe_to_release(&self) -> bool {
        false
    }

    /// Whether a released message that is [near its limit](Self::is_near_limit) never goes back
    /// where its broker might delete it: its source delivers it again, or [hands it over at its
    /// close](Closed::near_limit). Otherwise the consumer never releases a message near its limit
    /// that is not [safe to release](Self::is_safe_to_release): it keeps it as a dead letter, and
    /// holds it until that is possible. A message that can never be kept holds one of the
    /// consumer's places for ever. When the consumer stops it drops the receipt of a message that
    /// cannot be kept, and the drop must not return the message. False unless given.
    fn withholds_near_limit(&self) -> bool {
        false
    }

    /// The message failed with this error. Answers what becomes of it.
    fn failed(
        self: Box<Self>,
        error: String,
    ) -> BoxFuture<'static, Result<Settlement, TransportError>> {
        let _ = error;
        let told = self.settle(Settlement::RETRY);
        async move { told.await.map(|()| Settlement::RETRY) }.boxed()
    }
}

/// One message with its receipt.
pub struct Delivery {
    message: Message,
    receipt: Box<dyn Receipt>,
}

impl Delivery {
    /// A message as it came, and the way to settle it.
    pub fn new(message: Message, receipt: impl Receipt) -> Self {
        Self {
            message,
            receipt: Box::new(receipt),
        }
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Takes the two apart.
    pub fn into_parts(self) -> (Message, Box<dyn Receipt>) {
        (self.message, self.receipt)
    }

    /// Tells the broker what became of it.
    pub async fn settle(self, settlement: Settlement) -> Result<(), TransportError> {
        self.receipt.settle(settlement).await
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}
