//! Structured logs on standard error.

use anyhow::{Context, Result};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// The filter for the client libraries of RabbitMQ, NATS and Kafka. These libraries log each
/// attempt, some of them with its payload. The relay itself logs each new error. A directive for
/// one of these libraries in `--log` follows this filter and overrides it.
const CLIENTS: &str = "lapin=off,async_nats=off,librdkafka=off,rdkafka=off";

/// The default log filter.
pub const DEFAULT: &str = "info";

/// The formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object for each line
    Json,
    /// Readable text
    Text,
}

/// Starts the log on standard error. Fails if the filter is not valid.
pub fn start(filter: &str, format: LogFormat) -> Result<()> {
    // An empty filter means the default filter, because a deployment may set the variable to an
    // empty text. The filter `off` disables the log.
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
