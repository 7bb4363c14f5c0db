//! Waits for a state, and never for a fixed time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The longest time that [`until`] waits. Even on a busy machine, every state that the tests wait
/// for is reached earlier.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The pause between two checks.
const INTERVAL: Duration = Duration::from_millis(10);

/// Checks again and again until `reached` returns true.
///
/// # Errors
/// Returns the first error of `reached`, or an error with `what` when [`DEADLINE`] has passed.
pub async fn until(what: &str, mut reached: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !reached().await? {
        if started.elapsed() >= DEADLINE {
            bail!("{what}: not reached within {DEADLINE:?}");
        }
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(())
}
