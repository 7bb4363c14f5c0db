//! The settings of a relay.

use std::time::Duration;

/// The first and the longest pause while the database or the broker is unavailable.
pub(super) const AWAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The default interval at which the number of partitions is read.
pub(super) const RECOUNT: Duration = Duration::from_secs(10);

/// The default for the number of bytes in a batch.
pub(super) const MAX_BYTES: i64 = 16 * 1024 * 1024;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) batch: i32,
    pub(super) max_bytes: i64,
    pub(super) in_flight: usize,
    pub(super) lease: Duration,
    pub(super) max_attempts: u32,
    /// The first and the longest pause.
    pub(super) back_off: (Duration, Duration),
    pub(super) publish_timeout: Duration,
    pub(super) grace: Duration,
    pub(super) recount: Duration,
}
