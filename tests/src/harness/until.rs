//! Waiting for a state, never for a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Longer than anything that these tests wait for takes on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_millis(10);

/// Looks again and again until `reached` says yes.
///
/// # Errors
/// The first error of `reached`, or `what` when [`DEADLINE`] has passed.
pub async fn until(what: &str, mut reached: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !reached().await? {
        if started.elapsed() >= DEADLINE {
            bail!("{what}: not within {DEADLINE:?}");
        }
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(())
}
