//! The network between the processes and one of the servers is cut.

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::{RngExt, rngs::StdRng};

use super::{Fault, Kind, hold};
use crate::chaos::proxy::{Cut, Proxy};
use crate::chaos::site::Site;

/// Connections are reset.
pub struct Reset;
/// Nothing passes for a while.
pub struct Stall;
/// The server closes its side, and the client hears nothing for a while.
pub struct HalfOpen;

impl Fault for Reset {
    fn kind(&self) -> Kind {
        Kind::NetworkReset
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let hits = || site.database_proxy.hits() + site.broker_proxy.hits();
            let before = hits();
            // Often: each reset meets other sessions in the middle of something.
            for _ in 0..5 {
                choose(site, dice).cut(Cut::Reset);
                hold(dice, 0.2..1.0).await;
            }
            Ok(hits() > before)
        }
        .boxed()
    }
}

impl Fault for Stall {
    fn kind(&self) -> Kind {
        Kind::NetworkStall
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        cut(site, dice, Cut::Stall).boxed()
    }
}

impl Fault for HalfOpen {
    fn kind(&self) -> Kind {
        Kind::NetworkHalfOpen
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        cut(site, dice, Cut::HalfOpen).boxed()
    }
}

async fn cut(site: &Site, dice: &mut StdRng, cut: Cut) -> Result<bool> {
    let proxy = choose(site, dice);
    let before = proxy.hits();
    proxy.cut(cut);
    hold(dice, 2.0..7.0).await;
    // Healing resets half-open connections, and that is another hit.
    let has_hit = proxy.hits() > before;
    proxy.heal();
    Ok(has_hit)
}

fn choose<'s>(site: &'s Site, dice: &mut StdRng) -> &'s Proxy {
    if dice.random_bool(0.5) {
        &site.database_proxy
    } else {
        &site.broker_proxy
    }
}
