//! Holds a fault.

use std::time::{Duration, Instant};

use anyhow::Result;
use rand::{RngExt, rngs::StdRng};

use crate::site::Site;

/// The longest time that a fault is held until the log of the primary shows its consequence.
const PATIENCE: Duration = Duration::from_secs(20);

/// The interval between two reads of the log of the primary.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// Holds a fault for a random time in this range of seconds, and then until the log of the primary
/// has more than `before` lines with this text, for at most 20 seconds more. Returns whether the
/// log has these lines.
pub(super) async fn hold_until_logged(
    site: &Site,
    dice: &mut StdRng,
    seconds: std::ops::Range<f64>,
    text: &str,
    before: usize,
) -> Result<bool> {
    hold(dice, seconds).await;
    let began = Instant::now();
    while site.count_in_log(text).await? <= before {
        if began.elapsed() > PATIENCE {
            return Ok(false);
        }
        // The pause is fixed. With random pauses, the number of random values that this loop takes,
        // and so all later random choices, would depend on the timing.
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(true)
}

/// Holds a fault for a random time in this range of seconds.
pub(super) async fn hold(dice: &mut StdRng, seconds: std::ops::Range<f64>) {
    tokio::time::sleep(Duration::from_secs_f64(dice.random_range(seconds))).await;
}
