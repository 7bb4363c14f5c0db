//! The lease of an attempt that a consumer may interrupt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idem_client::lease::Held;

/// Contains the lease of a counted attempt while the attempt runs and while its lease is ended. If
/// the future of the attempt is dropped, the lease stays here, and the consumer can end it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedLease(Arc<Mutex<Option<InterruptedLease>>>);

/// The lease of an attempt that was interrupted.
#[derive(Debug)]
pub(crate) struct InterruptedLease {
    pub(crate) held: Held,
    /// The error, if the attempt had failed before it was interrupted. It then stays counted.
    pub(crate) error: Option<String>,
}

impl NotedLease {
    pub(crate) fn set(&self, held: &Held) {
        *self.lock() = Some(InterruptedLease {
            held: held.clone(),
            error: None,
        });
    }

    /// Notes that the attempt has failed and that its lease is about to be ended.
    pub(crate) fn set_failed(&self, error: String) {
        if let Some(lease) = &mut *self.lock() {
            lease.error = Some(error);
        }
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
