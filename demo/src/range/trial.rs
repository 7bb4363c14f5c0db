//! A trial, which runs the traffic on one system, in one part or in several.

use std::sync::{Arc, atomic::Ordering};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::{
    Config, System, business,
    config::DEADLINE,
    consumer,
    handlers::by_id,
    message::FireAt,
    relay,
    report::SystemReport,
    session::Session,
    traffic::Traffic,
    trial_state::TrialState,
    verdict::{self, Facts},
};

/// A system, with its tables and its transport.
pub struct Trial {
    config: Config,
    state: Arc<TrialState>,
    attempts: Vec<FireAt>,
}

/// The point at which [`Trial::play`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After at least this number of deliveries since the start of the trial. The other messages
    /// stay queued.
    Deliveries(u64),
    /// When no message is left.
    Drained,
}

/// A handle that reads the progress of a trial while it runs.
#[derive(Clone)]
pub struct Watch {
    /// The state of the trial.
    pub state: Arc<TrialState>,
    /// The number of attempts.
    pub attempts: usize,
}

impl Trial {
    /// Drops and creates the tables of this system, and sends the traffic of the seed.
    ///
    /// Returns an error when the database has no extension idem, or cannot be reached.
    pub async fn prepare(config: &Config, system: System) -> Result<Self> {
        let traffic = Traffic::generate(config)?;
        let state = Arc::new(TrialState::new(config, system)?);
        let session = Session::open(&state).await?;
        business::set_up(
            &session.client,
            &state.schema,
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
                    .execute("SELECT idem_create_relay($1)", &[&state.relay])
                    .await
                    .context("cannot create a relay; the database needs the extension idem")?;
            }
        }
        state.transport.send_all(&traffic.commands);
        Ok(Self {
            config: config.clone(),
            state,
            attempts: traffic.attempts,
        })
    }

    /// Runs the consumers, and for idem also a relay, up to this point.
    ///
    /// Returns an error when a consumer or the relay fails, or at the deadline of the settings.
    pub async fn play(&mut self, until: Until) -> Result<()> {
        self.state.transport.pause_at(match until {
            Until::Deliveries(deliveries) => Some(deliveries),
            Until::Drained => None,
        });
        let mut workers = JoinSet::new();
        for _ in 0..self.config.consumers {
            workers.spawn(consumer::run(Arc::clone(&self.state)));
        }
        if self.state.system == System::Idem {
            let state = Arc::clone(&self.state);
            workers.spawn(relay::run(state, self.config.seed, self.config.rates.kill));
        }
        let all = async {
            // The first error drops the set, which aborts all other tasks.
            while let Some(worker) = workers.join_next().await {
                worker??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(DEADLINE, all)
            .await
            .with_context(|| {
                format!(
                    "system \"{}\" did not finish within {DEADLINE:?}: {:?}",
                    self.state.system.name(),
                    self.state.transport.counts()
                )
            })??;
        Ok(())
    }

    /// Returns the recorded effects of every attempt, as a duplicate would read them. The result is
    /// empty for systems other than idem.
    pub async fn recorded(&self) -> Result<Facts> {
        if self.state.system != System::Idem {
            return Ok(Facts::new());
        }
        let session = Session::open(&self.state).await?;
        verdict::recorded(&session.client, self.state.targets.as_str(), &self.attempts).await
    }

    /// Returns the facts that were published so far about each attempt, in order.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.state.observer.facts()
    }

    /// Returns the verdict and the counts. Ends the trial: its relay is dropped and does not keep
    /// effects in the outbox any longer.
    pub async fn report(self) -> Result<SystemReport> {
        let session = Session::open(&self.state).await?;
        let facts = self.state.observer.facts();
        let recorded = self.recorded().await?;
        let verdict = verdict::judge(&session.client, &self.attempts, &facts, &recorded).await?;
        if self.state.system == System::Idem {
            session
                .client
                .execute("SELECT idem_drop_relay($1)", &[&self.state.relay])
                .await?;
        }
        Ok(SystemReport {
            system: self.state.system,
            counts: self.state.transport.counts(),
            kills: self.state.kills.load(Ordering::Relaxed),
            verdict,
            facts,
        })
    }

    /// Returns a handle that reads the progress of the trial.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch {
            state: Arc::clone(&self.state),
            attempts: self.attempts.len(),
        }
    }
}
