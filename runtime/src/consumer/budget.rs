//! Limits the bytes of the messages that a consumer holds. Dropping a share returns its bytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of bytes that may be held at the same time. A message that is larger than the limit
/// takes the whole limit, so it is held alone.
pub(super) struct Budget {
    bytes: Arc<Semaphore>,
    limit: u32,
}

/// The part of a [`Budget`] that one message takes.
pub(super) type Share = OwnedSemaphorePermit;

impl Budget {
    /// Creates a budget of `limit` bytes. A limit above 4 GiB counts as 4 GiB, which is the most
    /// that a semaphore can acquire at once.
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

    /// Takes a share of `size` bytes if they are free.
    pub(super) fn try_take(&self, size: usize) -> Option<Share> {
        Arc::clone(&self.bytes)
            .try_acquire_many_owned(self.share_of(size))
            .ok()
    }

    /// Waits until `size` bytes are free and takes them. Cancel safe.
    pub(super) async fn take(&self, size: usize) -> Option<Share> {
        Arc::clone(&self.bytes)
            .acquire_many_owned(self.share_of(size))
            .await
            .ok()
    }

    /// Takes a share of the free bytes, at most `size`. Used for a message that must not wait for
    /// its bytes.
    pub(super) fn take_free(&self, size: usize) -> Option<Share> {
        let free = self.share_of(self.bytes.available_permits().min(size));
        Arc::clone(&self.bytes).try_acquire_many_owned(free).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that is larger than the limit takes all bytes, so it is held alone.
    #[test]
    fn oversized_message_takes_the_whole_limit() {
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

    /// A limit above the largest number of the semaphore is reduced to that number.
    #[test]
    fn limit_above_4_gib_is_accepted() {
        let budget = Budget::new(usize::MAX);
        assert!(budget.try_take(usize::MAX).is_some());
    }
}
