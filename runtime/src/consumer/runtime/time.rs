//! The time limit for the steps of a shutdown, and functions to wait until an instant.

use std::{future::pending, time::Duration};

use tokio::time::{Instant, sleep_until};

/// The longest time for each step of a shutdown after the grace period: see `drain`.
pub(super) const STOP_STEP_LIMIT: Duration = Duration::from_secs(5);
/// The limit for every wait. A longer wait counts as this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Returns the instant after this time, at most [`LONGEST_WAIT`] from now. [`Duration::MAX`] means
/// "never", but a clock cannot add it.
pub(super) fn later(after: Duration) -> Instant {
    Instant::now() + after.min(LONGEST_WAIT)
}

/// Sleeps until this instant, or for ever when there is none.
pub(super) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
