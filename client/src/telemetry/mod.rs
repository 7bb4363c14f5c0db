//! Records spans with OpenTelemetry's messaging attributes, trace context, and metrics.
//!
//! Ids are attributes of spans and never labels of metrics, because each value of a label creates a
//! time series.

mod consume;
mod metric;
mod process;
mod publish;
mod trace;

pub(crate) use consume::{database_is_away, destination_is_paused, settled, source_failed};
pub use metric::describe_metrics;
pub(crate) use process::{Processing, of_process_batch, retried};
pub(crate) use publish::{
    Publishing, nothing_waits, parked, publishes_batch, relay_begins, relay_broker_is_away,
    relay_database_is_away, relay_unavailable_topics,
};
pub(crate) use trace::pass_on;

use crate::ErrorKind;

/// Returns the name of an error kind for labels and for the attribute `error.type`.
pub(crate) fn name_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Conflict => "conflict",
        ErrorKind::ConnectionLost => "connection_lost",
        ErrorKind::AmbiguousCommit => "ambiguous_commit",
        ErrorKind::ReadOnly => "read_only",
        ErrorKind::NotClaimed => "not_claimed",
        ErrorKind::NotGranted => "not_granted",
        ErrorKind::NotInstalled => "not_installed",
        ErrorKind::NotFound => "not_found",
        ErrorKind::MissingId => "missing_id",
        ErrorKind::Handler => "handler",
        ErrorKind::Terminal => "terminal",
        ErrorKind::PoolExhausted => "pool_exhausted",
        ErrorKind::Other => "other",
    }
}
