//! Fills the disk of the primary. The log of the primary is on the same disk.

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::rngs::StdRng;

use super::{Fault, Kind, hold_until_logged};
use crate::{server_log::with_state, site::Site};

/// Fills the disk and frees it again. If the primary ended because of the full disk, it is
/// restarted.
pub struct FullDisk;

impl Fault for FullDisk {
    fn kind(&self) -> Kind {
        Kind::FullDisk
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
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
        .boxed()
    }
}
