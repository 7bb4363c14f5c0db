//! The network between the processes and one of the servers is interrupted.

use anyhow::Result;
use idem_testkit::proxy::network::{Fault, Network};
use rand::{RngExt, rngs::StdRng};

use super::hold::hold;
use crate::site::Site;

/// Resets connections several times: each reset interrupts different sessions at different points.
pub(super) async fn reset(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let hits = || site.database_proxy.hits() + site.broker_proxy.hits();
    let before = hits();
    for _ in 0..5 {
        choose(site, dice).cut(Fault::Reset);
        hold(dice, 0.2..1.0).await;
    }
    Ok(hits() > before)
}

/// Passes no data for some seconds.
pub(super) async fn cut(site: &Site, dice: &mut StdRng, fault: Fault) -> Result<bool> {
    let proxy = choose(site, dice);
    let before = proxy.hits();
    proxy.cut(fault);
    hold(dice, 2.0..7.0).await;
    // Read before `heal`, which resets half-open connections and counts these as hits.
    let has_hit = proxy.hits() > before;
    proxy.heal();
    Ok(has_hit)
}

fn choose<'s>(site: &'s Site, dice: &mut StdRng) -> &'s Network {
    if dice.random_bool(0.5) {
        &site.database_proxy
    } else {
        &site.broker_proxy
    }
}
