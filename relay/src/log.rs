//! Structured logs on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::arguments::LogFormat;

/// The clients of RabbitMQ, NATS and Kafka log each attempt, some with its payload. The relay logs
/// their errors itself, when they are new. A directive for one of them in `--log` comes after
/// these, and replaces it.
const CLIENTS: &str = "lapin=off,async_nats=off,librdkafka=off,rdkafka=off";

/// What is logged unless a filter is given.
pub const DEFAULT: &str = "info";

/// Sends what is traced from here on to standard error.
pub fn start(filter: &str, format: LogFormat) -> Result<()> {
    // A deployment that sets an empty variable does not mean silence: that is `off`.
    let filter = if filter.trim().is_empty() {
        DEFAULT
    } else {
        filter
    };
    let filter = EnvFilter::try_new(format!("{CLIENTS},{filter}"))
        .with_context(|| format!("`{filter}` is not a log filter"))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        LogFormat::Text => log.with_ansi(false).init(),
    }
    Ok(())
}
