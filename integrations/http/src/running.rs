//! Waits for leased requests at a shutdown.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// The leased requests of a layer that are being processed: see
/// [`IdempotencyLayer::running`](crate::IdempotencyLayer::running).
#[derive(Clone, Debug, Default)]
pub struct RunningRequests(pub(crate) TaskTracker);

impl RunningRequests {
    /// Returns the number of requests that are being processed.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits until all requests have ended and are recorded, at most for `grace`. Returns the
    /// number of requests that have not ended.
    ///
    /// Call this when the server accepts no more requests. A request that has not ended by then
    /// ends with the process. Its lease expires, and a repeated request is processed after that.
    pub async fn ended(&self, grace: Duration) -> usize {
        self.0.close();
        if timeout(grace, self.0.wait()).await.is_ok() {
            return 0;
        }
        let left = self.count();
        tracing::warn!(
            left,
            ?grace,
            "leased requests have not ended within the grace period of the shutdown"
        );
        left
    }
}
