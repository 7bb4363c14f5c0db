//! Structured logs on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::arguments::LogFormat;

/// Sends what is traced from here on to standard error.
pub fn start(filter: &str, format: LogFormat) -> Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("`{filter}` is not a log filter"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        LogFormat::Text => log.with_ansi(false).init(),
    }
    Ok(())
}
