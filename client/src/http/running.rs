//! The work of leased requests at a shutdown.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// The leased requests of a layer that are being worked on: see
/// [`IdempotencyLayer::running`](crate::http::IdempotencyLayer::running).
#[derive(Clone, Debug, Default)]
pub struct RunningRequests(TaskTracker);

impl RunningRequests {
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.0
    }

    /// How many there are now.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits until all have ended and are recorded, for `grace` at most. Returns how many have not.
    ///
    /// Call it when the server takes no requests any more. A request that has not ended by then
    /// ends with the process: its lease runs out, and a repeated request is worked on after that.
    pub async fn ended(&self, grace: Duration) -> usize {
        self.0.close();
        if timeout(grace, self.0.wait()).await.is_ok() {
            return 0;
        }
        let left = self.count();
        tracing::warn!(
            left,
            ?grace,
            "leased requests have not ended within the grace of the shutdown"
        );
        left
    }
}
