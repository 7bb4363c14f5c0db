//! What the consumers of one trial share.

use std::sync::atomic::AtomicU64;

use anyhow::Result;
use idem_client::Destination;
use uuid::Uuid;

use super::{
    Config, System, fate::Fates, message::Message, observer::Observer, transport::Transport,
};

/// One system on one database.
pub struct World {
    /// Which handlers work here.
    pub system: System,
    /// Where the database is.
    pub database_url: String,
    /// The schema of the business tables.
    pub schema: String,
    /// Who handles the commands, on idem.
    pub targets: Destination,
    /// Who counts the hits, on idem.
    pub board: Destination,
    /// Where the facts go, on idem.
    pub topic: String,
    /// Who publishes them, on idem.
    pub relay: String,
    /// How messages come and go.
    pub transport: Transport,
    /// Who hears every fact.
    pub observer: Observer,
    /// How many consumers have been killed.
    pub kills: AtomicU64,
}

impl World {
    /// A world without messages.
    pub fn new(config: &Config, system: System) -> Result<Self> {
        // Attempts have the same ids in every run of one seed; in a new run they are new messages
        // all the same.
        let run = Uuid::new_v4().simple();
        let fates = Fates::new(config.seed, config.rates.clone());
        Ok(Self {
            system,
            database_url: config.database_url.clone(),
            schema: format!("range_{}", system.slug()),
            targets: Destination::new(format!("range.{run}.targets"))?,
            board: Destination::new(format!("range.{run}.leader-board"))?,
            topic: format!("range.{run}.facts"),
            relay: format!("range.{run}"),
            transport: Transport::new(fates, system == System::Idem),
            observer: Observer::default(),
            kills: AtomicU64::new(0),
        })
    }

    /// Tells the world a fact.
    pub fn publish(&self, fact: Message) {
        self.observer.hear(&fact);
        self.transport.publish(fact);
    }
}
