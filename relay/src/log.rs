//! Structured logs on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::arguments::LogFormat;

/// The filter for the client libraries of RabbitMQ, NATS and Kafka, which log each attempt, some
/// with its payload. The relay logs their errors itself when they are new. A directive for one of
/// them in `--log` follows these directives and overrides them.
const CLIENTS: &str = "lapin=off,async_nats=off,librdkafka=off,rdkafka=off";

/// The default log filter.
pub const DEFAULT: &str = "info";

/// Starts the log on standard error. Fails if the filter is not valid.
pub fn start(filter: &str, format: LogFormat) -> Result<()> {
    // A deployment may set an empty variable, which does not mean to log nothing: that is `off`.
    let filter = if filter.trim().is_empty() {
        DEFAULT
    } else {
        filter
    };
    let filter = EnvFilter::try_new(format!("{CLIENTS},{filter}"))
        .with_context(|| format!("`{filter}` is not a valid log filter"))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        LogFormat::Text => log.with_ansi(false).init(),
    }
    Ok(())
}
