//! The network between the processes and one of the servers is interrupted.

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::{RngExt, rngs::StdRng};

use super::{Fault, Kind, hold};
use crate::proxy::{Cut, Proxy};
use crate::site::Site;

/// Connections are reset.
pub struct Reset;
/// No data passes for some seconds.
pub struct Stall;
/// Connections are closed at the server, and the client receives nothing for some seconds.
pub struct HalfOpen;

impl Fault for Reset {
    fn kind(&self) -> Kind {
        Kind::NetworkReset
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let hits = || site.database_proxy.hits() + site.broker_proxy.hits();
            let before = hits();
            // Reset connections several times: each reset interrupts different sessions at
            // different points.
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
    // Read before `heal`, which resets half-open connections and counts these as hits.
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
