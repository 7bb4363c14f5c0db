//! A message of the durable inbox, as whoever handles it needs to know it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{Destination, MessageId};

/// The lease under which the inbox has handed out a message.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// What it is known by, whatever the policy would make of its content.
    pub(crate) id: MessageId,
    pub(crate) destination: Destination,
    /// No route took it when it came: its own id counts, for the destination of the route that
    /// takes it now.
    pub(crate) was_unrouted: bool,
    /// Holds the lease.
    pub(crate) token: i64,
    /// Why the attempt before this one failed.
    pub(crate) last_error: Option<String>,
    /// Its claim has ended it in the inbox: nothing is left to be acknowledged.
    pub(crate) is_claimed: Arc<AtomicBool>,
}

impl Stored {
    /// This identity was claimed, and that is committed.
    pub(crate) fn note_claimed(&self, destination: &Destination, id: &MessageId) {
        if *destination == self.destination && id.canonical() == self.id.canonical() {
            self.is_claimed.store(true, Ordering::Release);
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Acquire)
    }
}
