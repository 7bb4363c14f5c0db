//! Faults of the servers: crashes, a promotion, a full disk, and a wall clock that jumps.

use std::time::Duration;

use anyhow::{Result, ensure};
use rand::{RngExt, rngs::StdRng};

use super::hold::{hold, hold_until_logged};
use crate::{server_log::with_state, site::Site};

/// The largest jump of the clock, in seconds. The limit is low because a lease that is acquired
/// while the clock is ahead lasts longer by the size of the jump.
const LARGEST_JUMP_S: i64 = 15;

/// The primary crashes and recovers. Its clients get no error message before the connection ends.
pub(super) async fn crash_primary(site: &Site) -> Result<bool> {
    site.with_pair(|pair| {
        pair.crash_primary()?;
        pair.wait_for_sync()?;
        Ok(true)
    })
    .await
}

/// Kills the primary, promotes the standby, switches the proxy, and rebuilds the old primary.
pub(super) async fn promote_standby(site: &Site) -> Result<bool> {
    site.with_pair(|pair| pair.promote()).await?;
    site.follow_primary().await?;
    site.with_pair(|pair| pair.rebuild()).await?;
    Ok(true)
}

/// Fills the disk of the primary, where its log is too, and frees it again. If the primary ended
/// because of the full disk, it is restarted.
pub(super) async fn fill_disk(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let refused = with_state("53100");
    let before = site.count_in_log(&refused).await?;
    site.with_pair(|pair| pair.disk().fill()).await?;
    let was_full = hold_until_logged(site, dice, 4.0..8.0, &refused, before).await;
    site.with_pair(|pair| {
        pair.disk().free()?;
        pair.revive_primary()?;
        pair.wait_for_sync()
    })
    .await?;
    was_full
}

/// The wall clock jumps in either direction and is set back.
///
/// Only the clock of the servers jumps, because idem does not read the clocks of the clients. After
/// a jump, leases and due times end earlier or later by the size of the jump. The rings must not be
/// affected.
pub(super) async fn jump_clock(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let jump = dice.random_range(5..=LARGEST_JUMP_S);
    let jump = if dice.random_bool(0.5) { jump } else { -jump };
    let before = clock_offset(site).await?;
    site.clock.set(jump)?;
    let after = clock_offset(site).await?;
    ensure!(
        (after - before).abs() > 3.0,
        "the clock did not jump by {jump} s"
    );
    hold(dice, 2.0..5.0).await;
    site.clock.set(0)?;
    // The clock jumps back here. Wait, so that processes work with leases that were acquired before
    // this jump and keep their deadlines.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(true)
}

/// Returns the difference between the wall clock and the monotonic clock of the primary, in
/// seconds.
async fn clock_offset(site: &Site) -> Result<f64> {
    let row = site
        .connect()
        .await?
        .query_one(
            "SELECT (extract(epoch FROM clock_timestamp())
                     - extract(epoch FROM idem.monotonic()))::float8",
            &[],
        )
        .await?;
    Ok(row.try_get(0)?)
}
