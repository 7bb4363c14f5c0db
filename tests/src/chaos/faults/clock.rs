//! The wall clock jumps, and later back.
//!
//! This covers the clock of the servers: leases and due times end early, or late by the jump, and
//! the rings must not notice. The clocks of the clients do not jump; idem does not read them.

use std::time::Duration;

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::{RngExt, rngs::StdRng};

use super::{Fault, Kind, hold};
use crate::chaos::site::Site;

/// By how many seconds. A lease of the time after a jump forward lasts for so much longer.
const LARGEST_JUMP_S: i64 = 15;

/// The clock jumps in one direction, and back.
pub struct ClockJump;

impl Fault for ClockJump {
    fn kind(&self) -> Kind {
        Kind::ClockJump
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let jump = dice.random_range(5..=LARGEST_JUMP_S);
            let jump = if dice.random_bool(0.5) { jump } else { -jump };
            let before = wrong_by(site).await?;
            site.clock.set(jump)?;
            let after = wrong_by(site).await?;
            anyhow::ensure!(
                (after - before).abs() > 3.0,
                "the clock did not jump by {jump} s"
            );
            hold(dice, 2.0..5.0).await;
            site.clock.set(0)?;
            // Leases that were taken before the clock was set back last until then.
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(true)
        }
        .boxed()
    }
}

/// The wall clock of the primary against its monotonic clock, in seconds.
async fn wrong_by(site: &Site) -> Result<f64> {
    let row = site
        .connect()
        .await?
        .query_one(
            "SELECT (extract(epoch FROM clock_timestamp()) - extract(epoch FROM idem.monotonic()))::float8",
            &[],
        )
        .await?;
    Ok(row.try_get(0)?)
}
