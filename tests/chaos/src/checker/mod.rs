//! Compares the state after a campaign with the messages that were sent. Every row of errors in the
//! ledger is one [`Violation`].

mod deliveries;
mod poison;
mod server;
mod streams;
mod violation;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use super::{
    site::{SentPoison, Site},
    watch::Watched,
};
use idem_demo::range::{
    live::place::{self, Logged},
    traffic::Traffic,
};

pub use violation::{Errors, Violation};

/// The state after a campaign.
pub struct History<'h> {
    /// A session in the database.
    pub client: &'h Client,
    /// The directory with the notes of the processes.
    pub dir: &'h Path,
    /// The commands that were sent.
    pub traffic: &'h Traffic,
    /// The poison messages that were sent.
    pub poison: &'h [SentPoison],
    /// The letters and steps that were published to the broker, in order.
    pub published: &'h [Logged],
    /// The logs of the servers.
    pub server_log: &'h str,
    /// The observations during the campaign.
    pub watched: &'h Watched,
}

impl History<'_> {
    /// Counts all errors except those that can only be observed during the run.
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

    /// Returns the OIDs of the relations in schema `idem`.
    async fn relations(&self) -> Result<BTreeSet<u32>> {
        let sql = "SELECT oid FROM pg_class WHERE relnamespace = 'idem'::regnamespace";
        let rows = self.client.query(sql, &[]).await?;
        Ok(rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()?)
    }
}

/// Counts the errors of a campaign after its drain.
pub async fn check(
    site: &Site,
    dir: &Path,
    traffic: &Traffic,
    watched: &Watched,
) -> Result<Errors> {
    let published = place::read_log(site.kind, &site.broker_url)
        .await
        .context("cannot read the log of the broker")?;
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
