//! Holds what a campaign has left behind against what was sent. Every row of the ledger is one
//! [`Violation`].

mod deliveries;
mod poison;
mod server;
mod streams;
mod violation;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::{site::Site, watch::Watched};
use crate::range::traffic::Traffic;

pub use violation::Violation;

/// How often each error happened.
pub type Errors = BTreeMap<Violation, u64>;

/// Judges a campaign that has been drained.
///
/// # Errors
/// When a server cannot be asked.
pub async fn check(site: &Site, dir: &Path, traffic: &Traffic, watched: &Watched) -> Result<Errors> {
    let client = site.connect().await?;
    let mut errors = Errors::new();
    deliveries::check(&client, traffic, &mut errors).await?;
    streams::claims(&client, dir, &mut errors).await?;
    streams::leases(&client, &mut errors).await?;
    streams::log(site, &client, &mut errors).await?;
    poison::check(&client, &site.poison(), &mut errors).await?;
    let log = site.with_pair(|pair| pair.log()).await?;
    server::check(&log, watched, &mut errors);
    Ok(errors)
}
