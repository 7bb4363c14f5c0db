//! A message of the durable inbox, with the data that its handling needs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_client::{Destination, MessageId};

/// The lease under which the inbox delivered a message.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The id under which the inbox stores the message. The policy derives another id only if
    /// `was_unrouted` is true.
    pub(crate) id: MessageId,
    pub(crate) destination: Destination,
    /// Whether no route accepted the message when it was received. If true, a route accepts it now,
    /// and the policy of its destination derives the id.
    pub(crate) was_unrouted: bool,
    /// The token of the lease.
    pub(crate) token: i64,
    /// The duration of the lease, if a source renews it. `None` for a message that the application
    /// fetched itself.
    pub(crate) lease: Option<Duration>,
    /// The error of the attempt before this one.
    pub(crate) last_error: Option<String>,
    /// Whether a claim has completed the message in the inbox, so that nothing is left to
    /// acknowledge.
    pub(crate) is_claimed: Arc<AtomicBool>,
    /// Whether a leased handler has begun and has not returned. This stays true if the future of
    /// the handler is dropped: a thread or task of the handler may still run.
    pub(crate) is_in_handler: Arc<AtomicBool>,
}

impl Stored {
    /// Notes that a committed transaction has claimed this identity.
    pub(crate) fn note_claimed(&self, destination: &Destination, id: &MessageId) {
        if *destination == self.destination && id.canonical() == self.id.canonical() {
            self.is_claimed.store(true, Ordering::Release);
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Acquire)
    }

    pub(crate) fn set_in_handler(&self, is_in_handler: bool) {
        self.is_in_handler.store(is_in_handler, Ordering::Release);
    }

    pub(crate) fn is_in_handler(&self) -> bool {
        self.is_in_handler.load(Ordering::Acquire)
    }
}
