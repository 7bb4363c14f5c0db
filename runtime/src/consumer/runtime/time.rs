//! The time limit for the steps of a shutdown, and the limit of a wait.

use std::time::Duration;

use tokio::time::Instant;

/// The longest time for each step of a shutdown after the grace period: see `drain`.
pub(super) const STOP_STEP_LIMIT: Duration = Duration::from_secs(5);
/// The limit for every wait. A longer wait counts as this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Returns the instant after this time, at most [`LONGEST_WAIT`] from now. [`Duration::MAX`] means
/// "never", but a clock cannot add it.
pub(super) fn later(after: Duration) -> Instant {
    Instant::now() + after.min(LONGEST_WAIT)
}
