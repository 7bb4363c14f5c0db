//! Waiting for a state, never for a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long between two looks at the state: short against a server's start, long against the cost
/// of a look.
const INTERVAL: Duration = Duration::from_millis(10);

/// Looks again and again until `reached` says yes; fails with `what` when `deadline` has passed.
///
/// # Errors
/// The first error of `reached`, or "not within ..." after the deadline.
pub fn wait_for(
    what: &str,
    deadline: Duration,
    mut reached: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let started = Instant::now();
    while !reached()? {
        if started.elapsed() >= deadline {
            bail!("{what}: not within {deadline:?}");
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
