//! A server is killed with SIGKILL and restarted with its data.

use anyhow::Result;
use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use rand::rngs::StdRng;

use super::{Fault, Kind};
use crate::site::Site;

/// The broker crashes.
pub struct BrokerCrash;

impl Fault for BrokerCrash {
    fn kind(&self) -> Kind {
        Kind::BrokerCrash
    }

    fn strike<'a>(&'a self, site: &'a Site, _dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        site.crash_broker().map_ok(|()| true).boxed()
    }
}

/// The primary crashes and recovers. Its clients get no error message before the connection ends.
pub struct PrimaryCrash;

impl Fault for PrimaryCrash {
    fn kind(&self) -> Kind {
        Kind::PrimaryCrash
    }

    fn strike<'a>(&'a self, site: &'a Site, _dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        site.with_pair(|pair| {
            pair.crash_primary()?;
            pair.wait_for_sync()?;
            Ok(true)
        })
        .boxed()
    }
}

/// The standby crashes. Commits wait until it is up again.
pub struct StandbyCrash;

impl Fault for StandbyCrash {
    fn kind(&self) -> Kind {
        Kind::StandbyCrash
    }

    fn strike<'a>(&'a self, site: &'a Site, _dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        site.with_pair(|pair| pair.crash_standby())
            .map_ok(|()| true)
            .boxed()
    }
}
