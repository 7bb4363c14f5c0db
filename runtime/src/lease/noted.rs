//! The lease of an attempt that a consumer may interrupt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idem_client::{inbox::InboxMessage, lease::Held};

/// Contains the lease of an attempt while the attempt runs and while its lease is ended. If the
/// future of the attempt is dropped, the lease stays here, and the consumer can end it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedLease(Arc<Mutex<Option<InterruptedLease>>>);

/// The lease of an attempt that was interrupted.
#[derive(Debug)]
pub(crate) struct InterruptedLease {
    pub(crate) held: Held,
    /// Whether the attempt is not counted. A consumer that stops then releases the lease.
    /// Otherwise the lease expires.
    pub(crate) is_uncounted: bool,
    /// Used if the broker may delete the message: a consumer that stops then stores it with the
    /// token of the lease, because no other function can store a leased message.
    pub(crate) burial: Burial,
}

/// The content and the reason of a dead letter. `dead_letter.rs` creates and stores it.
#[derive(Debug)]
pub(crate) struct Burial {
    pub(crate) message: InboxMessage,
    /// The last error of the message.
    pub(crate) reason: String,
}

impl NotedLease {
    pub(crate) fn set(&self, lease: InterruptedLease) {
        *self.lock() = Some(lease);
    }

    pub(crate) fn take(&self) -> Option<InterruptedLease> {
        self.lock().take()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// Returns whether the noted lease is not released at a stop, so that it blocks the message
    /// until it expires.
    pub(crate) fn expires(&self) -> bool {
        self.lock()
            .as_ref()
            .is_some_and(|lease| !lease.is_uncounted)
    }

    fn lock(&self) -> MutexGuard<'_, Option<InterruptedLease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
