//! Holds what a campaign has left behind against what was sent. Every row of the ledger is one
//! [`Violation`].

mod deliveries;
mod poison;
mod server;
mod streams;
mod violation;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use super::{faults::poison::SentPoison, site::Site, watch::Watched};
use crate::range::{
    live::place::{self, Logged},
    traffic::Traffic,
};

pub use violation::Violation;

/// How often each error happened.
pub type Errors = BTreeMap<Violation, u64>;

/// What a campaign has left behind.
pub struct History<'h> {
    /// A session in the database.
    pub client: &'h Client,
    /// Where the processes have their notes.
    pub dir: &'h Path,
    /// The commands that were sent.
    pub traffic: &'h Traffic,
    /// The poison that was sent.
    pub poison: &'h [SentPoison],
    /// The letters and steps that the broker has taken, in order.
    pub published: &'h [Logged],
    /// What the servers have logged.
    pub server_log: &'h str,
    /// What was noted while it ran.
    pub watched: &'h Watched,
}

impl History<'_> {
    /// All errors but those that only the run itself can see.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn judge(&self) -> Result<Errors> {
        let mut errors = Errors::new();
        deliveries::check(self.client, self.traffic, &mut errors).await?;
        streams::claims(self.client, self.dir, &mut errors).await?;
        streams::leases(self.client, &mut errors).await?;
        streams::log(self.published, self.client, &mut errors).await?;
        poison::check(self.client, self.poison, &mut errors).await?;
        server::check(
            self.server_log,
            &self.relations().await?,
            self.watched,
            &mut errors,
        );
        Ok(errors)
    }

    /// The OIDs of the relations in schema `idem`.
    async fn relations(&self) -> Result<BTreeSet<u32>> {
        let sql = "SELECT oid FROM pg_class WHERE relnamespace = 'idem'::regnamespace";
        let rows = self.client.query(sql, &[]).await?;
        Ok(rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()?)
    }
}

/// Judges a campaign that has been drained.
///
/// # Errors
/// When a server cannot be asked.
pub async fn check(
    site: &Site,
    dir: &Path,
    traffic: &Traffic,
    watched: &Watched,
) -> Result<Errors> {
    let published = place::read_log(site.kind, &site.broker_url)
        .await
        .context("the log of the broker")?;
    let history = History {
        client: &site.connect().await?,
        dir,
        traffic,
        poison: &site.poison(),
        published: &published,
        server_log: &site.with_pair(|pair| pair.log()).await?,
        watched,
    };
    history.judge().await
}
