//! The traits that connect a consumer to a broker: [`Source`] and [`Receipt`]. They are small: an
//! implementation takes about 30 lines.

use std::{fmt, future::Future};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::Destination;

use super::summary::TransportError;
use crate::{Message, Settlement};

/// A stream of deliveries from a broker.
pub trait Source: Send + 'static {
    /// Waits for the next delivery. Returns `None` when the source will deliver no more messages.
    /// The consumer then ends with [`Error::SourceEnded`](crate::Error::SourceEnded). An error that
    /// directly precedes `None` is reported as the cause.
    ///
    /// The future must be cancel safe: when it is dropped, the source must keep a received message
    /// and return it later, or the broker must redeliver the message. After an error the caller
    /// waits for a short time and calls this function again. A source that lost its connection
    /// reconnects then.
    fn next(&mut self) -> impl Future<Output = Result<Option<Delivery>, TransportError>> + Send;

    /// Returns to the broker the messages that were prefetched and not delivered. The consumer
    /// calls this once, after all delivered messages are settled. The default implementation
    /// returns nothing.
    fn close(&mut self) -> impl Future<Output = Closed> + Send {
        async { Closed::default() }
    }

    /// Returns the destination of the durable inbox that this source reads. The default is `None`.
    /// The consumer itself reads the requeued messages of all its other destinations.
    fn inbox(&self) -> Option<&Destination> {
        None
    }

    /// Returns whether messages of one key are handled one after the other unless the consumer sets
    /// [`ordered_by_key`](crate::Consumer::ordered_by_key). A source that delivers the messages of
    /// a key in order returns true. The default is false.
    fn keeps_order_of_keys(&self) -> bool {
        false
    }
}

/// What a source did at its close with prefetched messages that it had not delivered.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Closed {
    /// The number of messages that were returned to the broker.
    pub returned: u64,
    /// Messages near their delivery limit, which were not returned: the broker may delete a message
    /// near its limit when it is returned. The consumer rejects these messages, so they are kept.
    pub near_limit: Vec<Delivery>,
}

impl Closed {
    /// Creates the result for a number of messages that were returned to the broker.
    pub fn returned(messages: u64) -> Self {
        Self {
            returned: messages,
            near_limit: Vec::new(),
        }
    }

    /// Sets the messages that were not returned because they are near their delivery limit.
    #[must_use]
    pub fn near_limit(mut self, deliveries: Vec<Delivery>) -> Self {
        self.near_limit = deliveries;
        self
    }
}

/// Settles one delivery at its broker.
pub trait Receipt: Send + 'static {
    /// Settles the delivery. When this fails, the broker redelivers the message. If the message was
    /// handled, the claim then detects the duplicate.
    ///
    /// A receipt that is dropped without being settled must count as not acknowledged.
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>>;

    /// Returns whether the source manages failures itself: it counts the failures, schedules the
    /// retries, decides when a message is not retried, and keeps the order of the message's key
    /// until then. The consumer then does none of this and reports each failure with
    /// [`failed`](Self::failed). The default is false.
    fn is_in_charge(&self) -> bool {
        false
    }

    /// Returns whether [`Reject`](Settlement::Reject) keeps the message at a place that the user
    /// has configured. Otherwise the consumer keeps a rejected message in `idem.dead_letter` and
    /// acknowledges it after that. The default is false.
    fn keeps_rejected(&self) -> bool {
        false
    }

    /// Returns whether the [`deliveries`](Message::deliveries) of the message include deliveries
    /// that were [released](Settlement::Release). The default is true.
    fn counts_releases(&self) -> bool {
        true
    }

    /// Returns a value if the broker has a delivery limit and may delete the message at its next
    /// return. The consumer rejects such a message when it fails, so that it is kept. The default
    /// is `None`.
    fn near_limit(&self) -> Option<NearLimit> {
        None
    }

    /// Reports that the message failed with this error. Returns how the message was settled.
    fn failed(
        self: Box<Self>,
        error: String,
    ) -> BoxFuture<'static, Result<Settlement, TransportError>> {
        let _ = error;
        let settled = self.settle(Settlement::RETRY);
        async move { settled.await.map(|()| Settlement::RETRY) }.boxed()
    }
}

/// What happens to a message [near its delivery limit](Receipt::near_limit) when it is
/// [released](Settlement::Release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearLimit {
    /// Whether a release uses up no delivery of the message now, because the source withholds the
    /// message or the broker does not count the return. The consumer then releases the message when
    /// it stops, or when the message must be redelivered although it did not fail. Otherwise it
    /// rejects the message.
    pub is_safe_to_release: bool,
    /// Whether the released message never returns to a place where its broker might delete it: the
    /// source redelivers the message itself, or [hands it over at its close](Closed::near_limit).
    ///
    /// If this is false, the consumer never releases the message unless it is
    /// [safe](Self::is_safe_to_release). The consumer stores the message as a dead letter and holds
    /// it until that succeeds. A message that can never be stored occupies one place of the
    /// consumer for as long as the consumer runs. When the consumer stops, it drops the receipt of
    /// a message that cannot be stored. Dropping the receipt must not return the message to the
    /// broker.
    pub is_withheld: bool,
    /// Whether the source [hands over](Closed::near_limit) the message at its close, if the message
    /// is released now. If a consumer that stops has the token of the message's lease, it rejects
    /// or stores such a message, because the delivery that is handed over has no token.
    pub is_handed_over_at_close: bool,
}

/// A message and its receipt.
pub struct Delivery {
    message: Message,
    receipt: Box<dyn Receipt>,
}

impl Delivery {
    /// Creates a delivery from a received message and the receipt that settles it.
    pub fn new(message: Message, receipt: impl Receipt) -> Self {
        Self {
            message,
            receipt: Box::new(receipt),
        }
    }

    /// Returns the message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Splits the delivery into its message and its receipt.
    pub fn into_parts(self) -> (Message, Box<dyn Receipt>) {
        (self.message, self.receipt)
    }

    /// Settles the delivery at its broker.
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
