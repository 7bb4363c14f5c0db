//! Waits for a state, and never for a fixed time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause between two checks of the state. It is short compared with the start of a server, and
/// long compared with a check.
const INTERVAL: Duration = Duration::from_millis(10);

/// Checks again and again until `reached` returns true.
///
/// # Errors
/// Returns the first error of `reached`, or an error with `what` when `deadline` has passed.
pub fn wait_for(
    what: &str,
    deadline: Duration,
    mut reached: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let started = Instant::now();
    while !reached()? {
        if started.elapsed() >= deadline {
            bail!("{what}: not reached within {deadline:?}");
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
