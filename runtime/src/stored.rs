//! A message of the durable inbox, with the data that its handling needs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use idem_client::{Destination, MessageId, lease::Held};

/// The lease under which the inbox delivered a message.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The lease, with the id under which the inbox stores the message. The policy derives another
    /// id only if `was_unrouted` is true. The duration of the lease is zero for a message that the
    /// application fetched itself, because no source renews that lease.
    pub(crate) held: Held,
    /// Whether no route accepted the message when it was received. If true, a route accepts it now,
    /// and the policy of its destination derives the id.
    pub(crate) was_unrouted: bool,
    /// Whether a claim has completed the message in the inbox, so that nothing is left to
    /// acknowledge.
    is_claimed: Arc<AtomicBool>,
    /// Whether a leased handler has begun and has not returned. This stays true if the future of
    /// the handler is dropped: a thread or task of the handler may still run.
    is_in_handler: Arc<AtomicBool>,
}

impl Stored {
    pub(crate) fn new(held: Held, was_unrouted: bool) -> Self {
        Self {
            held,
            was_unrouted,
            is_claimed: Arc::default(),
            is_in_handler: Arc::default(),
        }
    }

    /// Notes that a committed transaction has claimed this identity.
    pub(crate) fn note_claimed(&self, destination: &Destination, id: &MessageId) {
        let held = &self.held;
        if destination == held.destination() && id.canonical() == held.id().canonical() {
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
