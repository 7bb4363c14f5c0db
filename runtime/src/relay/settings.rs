//! The settings of a relay.

use std::time::Duration;

/// The first and the longest pause while the database or the broker is unavailable.
pub(super) const AWAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The default interval at which the number of partitions is read.
pub(super) const RECOUNT: Duration = Duration::from_secs(10);

/// The default for the number of bytes in a batch.
pub(super) const MAX_BYTES: i64 = 16 * 1024 * 1024;

/// The default settings of a relay, for programs that offer the same settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayDefaults {
    /// See [`Relay::batch`](crate::Relay::batch).
    pub batch: u32,
    /// See [`Relay::max_bytes`](crate::Relay::max_bytes).
    pub max_bytes: u64,
    /// See [`Relay::max_held_bytes`](crate::Relay::max_held_bytes).
    pub max_held_bytes: u64,
    /// See [`Relay::in_flight`](crate::Relay::in_flight).
    pub in_flight: usize,
    /// See [`Relay::lease`](crate::Relay::lease).
    pub lease: Duration,
    /// See [`Relay::max_attempts`](crate::Relay::max_attempts).
    pub max_attempts: u32,
}

impl Default for RelayDefaults {
    fn default() -> Self {
        Self {
            batch: 500,
            max_bytes: MAX_BYTES.unsigned_abs(),
            max_held_bytes: 64 * 1024 * 1024,
            in_flight: 256,
            lease: Duration::from_secs(30),
            max_attempts: 10,
        }
    }
}

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
