//! The lease of an attempt that a consumer may interrupt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idem_client::lease::Held;

/// Contains the lease of a counted attempt while the attempt runs. If the future of the attempt is
/// dropped, the lease stays here, and the consumer can release it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedLease(Arc<Mutex<Option<Held>>>);

impl NotedLease {
    pub(crate) fn set(&self, held: &Held) {
        *self.lock() = Some(held.clone());
    }

    pub(crate) fn take(&self) -> Option<Held> {
        self.lock().take()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
