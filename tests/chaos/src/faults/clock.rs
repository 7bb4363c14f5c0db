//! The wall clock jumps and is set back later.
//!
//! Only the clock of the servers jumps, because idem does not read the clocks of the clients. After
//! a jump, leases and due times end earlier or later by the size of the jump. The rings must not be
//! affected.

use std::time::Duration;

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::{RngExt, rngs::StdRng};

use super::{Fault, Kind, hold};
use crate::site::Site;

/// The largest jump, in seconds. The limit is low because a lease that is acquired while the clock
/// is ahead lasts longer by the size of the jump.
const LARGEST_JUMP_S: i64 = 15;

/// The clock jumps in either direction and is set back.
pub struct ClockJump;

impl Fault for ClockJump {
    fn kind(&self) -> Kind {
        Kind::ClockJump
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let jump = dice.random_range(5..=LARGEST_JUMP_S);
            let jump = if dice.random_bool(0.5) { jump } else { -jump };
            let before = clock_offset(site).await?;
            site.clock.set(jump)?;
            let after = clock_offset(site).await?;
            anyhow::ensure!(
                (after - before).abs() > 3.0,
                "the clock did not jump by {jump} s"
            );
            hold(dice, 2.0..5.0).await;
            site.clock.set(0)?;
            // The clock jumps back here. Wait, so that processes work with leases that were
            // acquired before this jump and keep their deadlines.
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(true)
        }
        .boxed()
    }
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
