//! A limit of bytes. A share of it is given back when it is dropped.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that may be held together. More than the limit counts as the limit: it is held alone.
pub(super) struct Budget {
    bytes: Arc<Semaphore>,
    limit: u32,
}

/// What one message takes of a [`Budget`].
pub(super) type Share = OwnedSemaphorePermit;

impl Budget {
    /// A semaphore counts up to 4 GiB at a time, and so does this limit.
    pub(super) fn new(limit: usize) -> Self {
        let limit = u32::try_from(limit.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self {
            bytes: Arc::new(Semaphore::new(limit as usize)),
            limit,
        }
    }

    fn share_of(&self, size: usize) -> u32 {
        u32::try_from(size).unwrap_or(u32::MAX).min(self.limit)
    }

    /// A share for so many bytes, if they are free.
    pub(super) fn try_take(&self, size: usize) -> Option<Share> {
        Arc::clone(&self.bytes)
            .try_acquire_many_owned(self.share_of(size))
            .ok()
    }

    /// Waits until so many bytes are free. Cancel safe.
    pub(super) async fn take(&self, size: usize) -> Option<Share> {
        Arc::clone(&self.bytes)
            .acquire_many_owned(self.share_of(size))
            .await
            .ok()
    }

    /// A share of what is free, for a message that must not wait for so many bytes.
    pub(super) fn take_free(&self, size: usize) -> Option<Share> {
        let free = self.share_of(self.bytes.available_permits().min(size));
        Arc::clone(&self.bytes).try_acquire_many_owned(free).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_limit_takes_all_of_it() {
        let budget = Budget::new(10);
        let small = budget.try_take(4).unwrap();
        assert!(budget.try_take(7).is_none() && budget.try_take(1_000).is_none());
        drop(small);
        let large = budget.try_take(1_000).unwrap();
        assert!(budget.try_take(1).is_none());
        assert_eq!(budget.take_free(5).unwrap().num_permits(), 0);
        drop(large);
        assert_eq!(budget.take_free(5).unwrap().num_permits(), 5);
    }

    #[test]
    fn a_limit_above_what_can_be_counted_is_a_limit() {
        let budget = Budget::new(usize::MAX);
        assert!(budget.try_take(usize::MAX).is_some());
    }
}
