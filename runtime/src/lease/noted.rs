//! The lease of an attempt that a consumer may interrupt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use idem_client::lease::{DeadLetterContent, Held};

/// Contains the lease of a counted attempt while the attempt runs and while its lease is ended. If
/// the future of the attempt is dropped, the lease stays here, and the consumer can end it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedLease(Arc<Mutex<Option<InterruptedLease>>>);

/// The lease of an attempt that was interrupted.
#[derive(Debug)]
pub(crate) struct InterruptedLease {
    pub(crate) held: Held,
    /// The dead letter of an attempt that had failed before it was interrupted. The attempt stays
    /// counted.
    pub(crate) failed: Option<Letter>,
}

/// The content of a dead letter.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) payload: Bytes,
    pub(crate) content: DeadLetterContent,
    /// The last error of the message.
    pub(crate) reason: String,
}

impl NotedLease {
    pub(crate) fn set(&self, held: &Held) {
        self.replace(held, None);
    }

    /// Notes that the attempt has failed and that its lease is about to be ended. A filter may have
    /// replaced the delivered message: `letter` has the message that failed.
    pub(crate) fn set_failed(&self, held: &Held, letter: Letter) {
        self.replace(held, Some(letter));
    }

    fn replace(&self, held: &Held, failed: Option<Letter>) {
        *self.lock() = Some(InterruptedLease {
            held: held.clone(),
            failed,
        });
    }

    pub(crate) fn take(&self) -> Option<InterruptedLease> {
        self.lock().take()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<InterruptedLease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
