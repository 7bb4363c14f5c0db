//! The lease of an attempt that a consumer may interrupt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use idem_client::lease::{DeadLetterContent, Held};

/// Contains the lease of an attempt while the attempt runs and while its lease is ended. If the
/// future of the attempt is dropped, the lease stays here, and the consumer can end it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedLease(Arc<Mutex<Option<InterruptedLease>>>);

/// The lease of an attempt that was interrupted.
#[derive(Debug)]
pub(crate) struct InterruptedLease {
    pub(crate) held: Held,
    pub(crate) end: LeaseEnd,
}

/// What a consumer that stops does with the lease of an interrupted attempt.
#[derive(Debug)]
pub(crate) enum LeaseEnd {
    /// Releases the lease. The attempt is not counted.
    Release,
    /// Lets the lease expire, so the attempt stays counted. If the broker may delete the message,
    /// the consumer stores it as a dead letter with the token of the lease.
    Expire(Burial),
}

/// What a message becomes a dead letter with.
#[derive(Debug)]
pub(crate) struct Burial {
    pub(crate) payload: Bytes,
    pub(crate) content: DeadLetterContent,
    /// The last error of the message.
    pub(crate) reason: String,
}

impl NotedLease {
    pub(crate) fn set(&self, held: &Held, end: LeaseEnd) {
        *self.lock() = Some(InterruptedLease {
            held: held.clone(),
            end,
        });
    }

    pub(crate) fn take(&self) -> Option<InterruptedLease> {
        self.lock().take()
    }

    pub(crate) fn take_if(
        &self,
        is_taken: impl FnOnce(&InterruptedLease) -> bool,
    ) -> Option<InterruptedLease> {
        self.lock().take_if(|lease| is_taken(lease))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<InterruptedLease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
