//! What protection costs: the same business transaction alone, with a hand-written inbox and
//! outbox, and with idem.
//!
//! All contestants run on the same server, with the same client library, the same number of
//! connections and the same messages, and prepare all statements. Both inboxes retain many claims
//! before the rounds. The contestants run alternately, round by round, in an order that rotates, so
//! that noise affects all of them. After the rounds the rows of each contestant are counted,
//! because a contestant that writes less is faster.

mod config;
mod contestant;
mod handler;
mod report;
mod steps;
mod tables;

pub use super::report::Ratio;
pub use config::{Config, Flaw, connections};
pub use contestant::Contestant;
pub use report::{Rates, Report, Settings};
pub use steps::Step;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use deadpool_postgres::Pool;
use uuid::Uuid;

use super::clients::{self, Clients, Completed};
use handler::Handler;
use tables::Written;

/// The time of the round before the measured rounds.
const WARM_UP: Duration = Duration::from_millis(300);

/// The state of a measurement when a contestant begins a round.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The round: 0 is the warm-up, 1 is the first round that is measured.
    pub round: usize,
    /// The number of measured rounds.
    pub rounds: usize,
    /// The contestant that runs next.
    pub next: Contestant,
    /// The rates of the earlier rounds.
    pub rates: &'a Rates,
}

/// Measures all contestants in a database that has the extension, as a superuser. Creates and
/// fills their tables in schemas of their own. `show` gets the progress before each contestant of
/// each round.
///
/// # Errors
/// Fails when a statement fails, and when a contestant has not written exactly one update for each
/// message. A contestant with protection must also have written one claim and one outgoing message
/// for each message.
pub async fn run(
    database_url: &str,
    config: &Config,
    mut show: impl FnMut(Progress<'_>),
) -> Result<Report> {
    let start = Instant::now();
    tables::fill(database_url, config.retained).await?;
    let filled = start.elapsed();
    let [alone, by_hand, idem] = Contestant::ALL;
    let mut sides = [
        Side::open(database_url, config, alone).await?,
        Side::open(database_url, config, by_hand).await?,
        Side::open(database_url, config, idem).await?,
    ];
    let mut rates = Rates::default();
    for round in 0..=config.rounds {
        for turn in 0..sides.len() {
            let index = (round + turn) % sides.len();
            let side = &mut sides[index];
            show(Progress {
                round,
                rounds: config.rounds,
                next: side.contestant,
                rates: &rates,
            });
            let completed = match round {
                0 => side.run(WARM_UP).await?,
                _ => side.run(config.round()).await?,
            };
            if round > 0 {
                rates.add(side.contestant, completed.rate());
            }
        }
        if round == 0 {
            // The times of the warm-up do not count.
            for side in &sides {
                side.handler.steps().take_ms();
            }
        }
    }
    for side in &sides {
        side.check_rows(config).await?;
    }
    let [first, ..] = &sides;
    Ok(Report {
        settings: Settings::read(&first.pool, config, first.handler.event(), filled).await?,
        steps_ms: sides.each_ref().map(|side| side.handler.steps().take_ms()),
        rates,
    })
}

/// A contestant with its connections and the number of messages that it has processed.
struct Side {
    contestant: Contestant,
    pool: Pool,
    clients: usize,
    handler: Arc<Handler>,
    messages: u64,
}

impl Side {
    async fn open(database_url: &str, config: &Config, contestant: Contestant) -> Result<Self> {
        let (url, connections) = (database_url.parse()?, config::connections(config.clients));
        let pool = clients::open_pool(url, connections, contestant.schema()).await?;
        // The claims and the effects of earlier runs have other destinations and topics, so they
        // are not counted.
        let run = Uuid::new_v4().simple().to_string();
        Ok(Self {
            contestant,
            pool,
            clients: config.clients,
            handler: Arc::new(Handler::new(contestant, config, &run)?),
            messages: 0,
        })
    }

    async fn run(&mut self, time: Duration) -> Result<Completed> {
        let clients = Clients {
            count: self.clients,
            time,
        };
        let handler = Arc::clone(&self.handler);
        let process = move |pool, account| {
            let handler = Arc::clone(&handler);
            async move { handler.process(&pool, account).await }
        };
        let completed = clients
            .run(&self.pool, process)
            .await
            .with_context(|| format!("\"{}\" failed", self.contestant))?;
        self.messages += completed.messages;
        Ok(completed)
    }

    /// Compares the rows that this contestant has written with the messages that it has processed.
    async fn check_rows(&self, config: &Config) -> Result<()> {
        let written = Written::read(&self.pool, self.contestant, &self.handler).await?;
        let expected = Written::expected(self.contestant, self.messages, config.outgoing)?;
        ensure!(
            written == expected,
            "\"{}\" processed {} messages and wrote {written}, but it must write {expected}",
            self.contestant,
            self.messages
        );
        Ok(())
    }
}
