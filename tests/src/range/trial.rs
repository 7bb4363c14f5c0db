//! One system that plays the traffic, at one go or in parts.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{task::JoinSet, time::Instant};

use super::{
    Config, System, business, consumer,
    handlers::by_id,
    message::FireAt,
    relay,
    report::SystemReport,
    session::Session,
    traffic::Traffic,
    transport::Counts,
    verdict::{self, Facts},
    world::World,
};

/// A system with its tables and its queue of messages.
pub struct Trial {
    config: Config,
    world: Arc<World>,
    attempts: Vec<FireAt>,
    played: Duration,
}

/// How far to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At least so many deliveries since the beginning; the rest waits.
    Deliveries(u64),
    /// Nothing waits any more.
    Drained,
}

/// A look at a trial while it is played.
#[derive(Clone)]
pub struct Watch(Arc<World>);

impl Trial {
    /// Makes the tables of this system anew and sends the traffic of the seed.
    pub async fn prepare(config: &Config, system: System) -> Result<Self> {
        let traffic = Traffic::generate(config)?;
        let world = Arc::new(World::new(config, system)?);
        let session = Session::open(&world).await?;
        business::set_up(
            &session.client,
            &world.schema,
            config.players,
            &traffic.positions,
        )
        .await?;
        match system {
            System::Nothing => {}
            System::ById => by_id::add_keys(&session.client).await?,
            System::Idem => {
                session
                    .client
                    .execute("SELECT idem_create_relay($1)", &[&world.relay])
                    .await
                    .context("cannot make a relay: is the extension idem in this database?")?;
            }
        }
        world.transport.send_all(&traffic.commands);
        Ok(Self {
            config: config.clone(),
            world,
            attempts: traffic.attempts,
            played: Duration::ZERO,
        })
    }

    /// Lets consumers, and on idem a relay, work that far.
    pub async fn play(&mut self, until: Until) -> Result<()> {
        self.world.transport.pause_at(match until {
            Until::Deliveries(deliveries) => Some(deliveries),
            Until::Drained => None,
        });
        let started = Instant::now();
        let mut workers = JoinSet::new();
        for _ in 0..self.config.consumers {
            workers.spawn(consumer::run(Arc::clone(&self.world)));
        }
        if self.world.system == System::Idem {
            let world = Arc::clone(&self.world);
            workers.spawn(relay::run(world, self.config.seed, self.config.rates.kill));
        }
        let all = async {
            // The first failure drops the set, and with it everyone else.
            while let Some(worker) = workers.join_next().await {
                worker??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(self.config.deadline(), all)
            .await
            .with_context(|| {
                format!(
                    "{} is not done after {:?}: {:?}",
                    self.world.system.name(),
                    self.config.deadline(),
                    self.world.transport.counts()
                )
            })??;
        self.played += started.elapsed();
        Ok(())
    }

    /// What every attempt has on record: the payloads that a duplicate is given. On idem only, else
    /// empty.
    pub async fn recorded(&self) -> Result<Facts> {
        if self.world.system != System::Idem {
            return Ok(Facts::new());
        }
        let session = Session::open(&self.world).await?;
        verdict::recorded(&session.client, &self.world.targets, &self.attempts).await
    }

    /// Every fact that was published so far, per attempt and in order.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.world.observer.facts()
    }

    /// The verdict, and what led to it. Ends the trial: its relay holds the outbox no longer.
    pub async fn report(self) -> Result<SystemReport> {
        let session = Session::open(&self.world).await?;
        let facts = self.world.observer.facts();
        let recorded = self.recorded().await?;
        let verdict = verdict::judge(&session.client, &self.attempts, &facts, &recorded).await?;
        if self.world.system == System::Idem {
            session
                .client
                .execute("SELECT idem_drop_relay($1)", &[&self.world.relay])
                .await?;
        }
        Ok(SystemReport {
            system: self.world.system,
            counts: self.world.transport.counts(),
            kills: self.world.kills.load(Ordering::Relaxed),
            played: self.played,
            verdict,
            facts,
        })
    }

    /// For whoever wants to look on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.world))
    }
}

impl Watch {
    /// Who plays.
    #[must_use]
    pub fn system(&self) -> System {
        self.0.system
    }

    /// What the transport has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.transport.counts()
    }

    /// How many contradictions the world has heard so far.
    #[must_use]
    pub fn contradictions(&self) -> usize {
        self.0.observer.contradictions()
    }
}
