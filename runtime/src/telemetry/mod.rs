//! Records spans with OpenTelemetry's messaging attributes, trace context, and metrics.
//!
//! Ids are attributes of spans and never labels of metrics, because each value of a label creates a
//! time series.

/// Logs a failure: a new one as a warning, and one that continues at the level DEBUG.
macro_rules! warn_if_new {
    ($is_new:expr, $($line:tt)+) => {
        if $is_new {
            tracing::warn!($($line)+);
        } else {
            tracing::debug!($($line)+);
        }
    };
}
pub(crate) use warn_if_new;

mod consume;
mod metric;
mod process;
#[cfg(feature = "opentelemetry")]
mod propagator;
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
