//! The primary is killed under load, and its synchronous standby is promoted.

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::rngs::StdRng;

use super::{Fault, Kind};
use crate::site::Site;

/// Kills the primary, promotes the standby, switches the proxy, and rebuilds the old primary.
pub struct Promotion;

impl Fault for Promotion {
    fn kind(&self) -> Kind {
        Kind::Promotion
    }

    fn strike<'a>(&'a self, site: &'a Site, _dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            site.with_pair(|pair| pair.promote()).await?;
            site.follow_primary().await?;
            site.with_pair(|pair| pair.rebuild()).await?;
            Ok(true)
        }
        .boxed()
    }
}
