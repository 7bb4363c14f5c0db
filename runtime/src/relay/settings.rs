//! The settings of a relay.

use std::time::Duration;

use crate::backoff::Pauses;

/// The pauses while the database or the broker is unavailable.
pub(super) const AWAY: Pauses = Pauses::from_millis(100, 5_000);

/// The default interval at which the number of partitions is read.
pub(super) const RECOUNT: Duration = Duration::from_secs(10);

/// The default settings of a [`Relay`](crate::Relay), for programs with settings of their own.
pub mod defaults {
    use std::time::Duration;

    /// The default of [`Relay::name`](crate::Relay::name).
    pub const NAME: &str = "default";
    /// The default of [`Relay::batch`](crate::Relay::batch).
    pub const BATCH: u32 = 500;
    /// The default of [`Relay::max_bytes`](crate::Relay::max_bytes).
    pub const MAX_BYTES: u64 = 16 * 1024 * 1024;
    /// The default of [`Relay::max_held_bytes`](crate::Relay::max_held_bytes).
    pub const MAX_HELD_BYTES: u64 = 64 * 1024 * 1024;
    /// The default of [`Relay::in_flight`](crate::Relay::in_flight).
    pub const IN_FLIGHT: usize = 256;
    /// The default of [`Relay::lease`](crate::Relay::lease).
    pub const LEASE: Duration = Duration::from_secs(30);
    /// The default of [`Relay::max_attempts`](crate::Relay::max_attempts).
    pub const MAX_ATTEMPTS: u32 = 10;
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) batch: i32,
    pub(super) max_bytes: i64,
    pub(super) in_flight: usize,
    pub(super) lease: Duration,
    pub(super) max_attempts: u32,
    /// The pauses before a rejected effect is published again.
    pub(super) backoff: Pauses,
    pub(super) publish_timeout: Duration,
    pub(super) grace: Duration,
    pub(super) recount: Duration,
}
