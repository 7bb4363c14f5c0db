//! The state that the consumers of one trial share.

use std::sync::atomic::AtomicU64;

use anyhow::Result;
use idem_client::Destination;
use uuid::Uuid;

use super::{
    config::Config, fate::Fates, message::Message, observer::Observer, system::System,
    transport::Transport,
};

/// The state of one system on one database.
pub struct TrialState {
    /// The system that is tested.
    pub system: System,
    /// The connection string of the database.
    pub database_url: String,
    /// The schema of the business tables.
    pub schema: String,
    /// The destination that handles the commands, for idem.
    pub targets: Destination,
    /// The destination that counts the hits, for idem.
    pub board: Destination,
    /// The topic of the facts, for idem.
    pub topic: String,
    /// The name of the relay that publishes the facts, for idem.
    pub relay: String,
    /// The transport of all messages.
    pub transport: Transport,
    /// The observer, which receives every fact.
    pub observer: Observer,
    /// The number of consumers that were killed.
    pub kills: AtomicU64,
}

impl TrialState {
    /// Creates the state of a trial, without messages.
    pub fn new(config: &Config, system: System) -> Result<Self> {
        // All runs of one seed use the same attempt ids. The random part of the destinations makes
        // them new messages in each run.
        let run = Uuid::new_v4().simple();
        let fates = Fates::new(config.seed, config.rates.clone());
        Ok(Self {
            system,
            database_url: config.database_url.clone(),
            schema: format!("range_{}", system.name().replace(' ', "_")),
            targets: Destination::new(format!("range.{run}.targets"))?,
            board: Destination::new(format!("range.{run}.leader-board"))?,
            topic: format!("range.{run}.facts"),
            relay: format!("range.{run}"),
            transport: Transport::new(fates, system == System::Idem),
            observer: Observer::default(),
            kills: AtomicU64::new(0),
        })
    }

    /// Publishes a fact to the observer and to the transport.
    pub fn publish(&self, fact: Message) {
        self.observer.hear(&fact);
        self.transport.publish(fact);
    }
}
