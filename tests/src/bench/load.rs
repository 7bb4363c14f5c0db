//! Clients that claim: each a thread with a session, all against one side, every answer checked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use idem_cluster::Cluster;
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

use super::ground::ACCOUNTS;
use super::side::{DESTINATION, Side};
use super::wire::Session;

/// How many of its own ids a client remembers to deliver again.
const RECENT: usize = 1_000;
/// And for how long: less than any retention that is measured, so that such an id must be a
/// duplicate.
const RECENT_FOR: Duration = Duration::from_secs(5);

/// What one transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// BEGIN, claim, business update if it was won, COMMIT: four round trips, three for a
    /// duplicate.
    Business,
    /// BEGIN, claim, record one effect if it was won, COMMIT.
    Effect,
    /// The claim as a transaction of its own.
    ClaimAlone,
}

/// When it ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Time(Duration),
    /// So many transactions, all clients together.
    Count(u64),
}

/// Traffic against one side.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub cluster: &'a Cluster,
    pub side: Side,
    pub work: Work,
    pub clients: usize,
    /// In percent: half of them ids that this client claimed a moment ago, half of them of `known`.
    pub duplicates: u32,
    pub synchronous_commit: bool,
    /// Ids that are remembered and stay so while this runs.
    pub known: &'a [String],
    pub until: Until,
    /// Pause of a client between two transactions, for a load that is not the measurement.
    pub pace: Option<Duration>,
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub transactions: u64,
    pub won: u64,
    pub seconds: f64,
}

impl Done {
    /// Transactions per second.
    pub fn rate(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }
}

/// What who accompanies a load can see of it.
pub struct Progress {
    won: AtomicU64,
    tickets: AtomicU64,
    ended: AtomicBool,
    pids: Mutex<Vec<i32>>,
    ids: Mutex<Vec<String>>,
    started: Instant,
}

impl Progress {
    /// The claims that have been won so far.
    pub fn won(&self) -> u64 {
        self.won.load(Ordering::Relaxed)
    }

    /// Whether all clients have stopped.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The server processes of the clients.
    pub fn pids(&self) -> Vec<i32> {
        self.pids
            .lock()
            .map(|pids| pids.clone())
            .unwrap_or_default()
    }

    /// Waits, but not longer than the load runs.
    pub fn wait_until(&self, since_start: Duration) {
        while !self.has_ended() && self.started.elapsed() < since_start {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Load<'_> {
    /// Runs it.
    pub fn run(&self) -> Result<Done> {
        self.run_with(|_| Ok(())).map(|(done, _)| done)
    }

    /// Runs it with somebody beside it, from the first transaction on; returns when both have
    /// ended. Answers also the ids that each client has claimed last.
    pub fn run_with(
        &self,
        beside: impl FnOnce(&Progress) -> Result<()> + Send,
    ) -> Result<(Done, Vec<String>)> {
        let progress = Progress {
            won: AtomicU64::new(0),
            tickets: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            pids: Mutex::default(),
            ids: Mutex::default(),
            started: Instant::now(),
        };
        let sessions = (0..self.clients)
            .map(|_| self.session())
            .collect::<Result<Vec<_>>>()?;
        if let Ok(mut pids) = progress.pids.lock() {
            pids.extend(sessions.iter().map(Session::pid));
        }
        let start = Barrier::new(self.clients + 1);
        thread::scope(|scope| {
            let clients: Vec<_> = sessions
                .into_iter()
                .map(|session| {
                    scope.spawn(|| {
                        start.wait();
                        self.client(session, &progress)
                    })
                })
                .collect();
            start.wait();
            let started = Instant::now();
            let beside = scope.spawn(|| beside(&progress));
            let mut transactions = 0;
            let mut failed = None;
            for client in clients {
                match client.join().map_err(|_| anyhow!("a client panicked")) {
                    Ok(Ok(count)) => transactions += count,
                    Ok(Err(error)) | Err(error) => failed = Some(error),
                }
            }
            let seconds = started.elapsed().as_secs_f64();
            progress.ended.store(true, Ordering::Release);
            beside
                .join()
                .map_err(|_| anyhow!("what ran beside the load panicked"))??;
            if let Some(error) = failed {
                return Err(error);
            }
            let done = Done {
                transactions,
                won: progress.won(),
                seconds,
            };
            let ids = progress.ids.lock().map(|mut ids| std::mem::take(&mut *ids));
            Ok((done, ids.unwrap_or_default()))
        })
    }

    fn session(&self) -> Result<Session> {
        let mut session = Session::connect(self.cluster, self.side.database())?;
        session.run(if self.synchronous_commit {
            "SET synchronous_commit = on"
        } else {
            "SET synchronous_commit = off"
        })?;
        session.prepare("claim", self.side.claim_sql())?;
        match self.work {
            Work::Business => session.prepare(
                "work",
                "UPDATE account SET balance = balance + 1 WHERE id = $1",
            )?,
            Work::Effect => {
                session.prepare("work", "SELECT idem_record_effects($1::text, $2, $3)")?
            }
            Work::ClaimAlone => {}
        }
        Ok(session)
    }

    /// One client to the end; how many transactions it made.
    fn client(&self, mut session: Session, progress: &Progress) -> Result<u64> {
        let mut random = SmallRng::from_rng(&mut rand::rng());
        let mut recent = Recent::default();
        let mut transactions = 0;
        while self.goes_on(progress) {
            let again = random.random_range(0..100) < self.duplicates;
            let known = if again {
                self.known_id(&mut recent, &mut random)
            } else {
                None
            };
            let expected = known.is_none();
            let id = known.unwrap_or_else(|| new_id(&mut random));
            let won = self.transaction(&mut session, &id, &mut random)?;
            ensure!(
                won == expected,
                "{:?}: {id} is {}, but the claim was {won}",
                self.side,
                if expected { "new" } else { "a duplicate" }
            );
            if won {
                progress.won.fetch_add(1, Ordering::Relaxed);
                recent.add(id);
            }
            transactions += 1;
            if let Some(pause) = self.pace {
                thread::sleep(pause);
            }
        }
        if let Ok(mut ids) = progress.ids.lock() {
            ids.extend(recent.ids());
        }
        Ok(transactions)
    }

    fn goes_on(&self, progress: &Progress) -> bool {
        match self.until {
            Until::Time(time) => progress.started.elapsed() < time,
            Until::Count(count) => progress.tickets.fetch_add(1, Ordering::Relaxed) < count,
        }
    }

    /// An id that has been claimed before; none when there is none yet.
    fn known_id(&self, recent: &mut Recent, random: &mut SmallRng) -> Option<String> {
        if self.known.is_empty() || random.random_bool(0.5) {
            recent.any(random).or_else(|| self.any_known(random))
        } else {
            self.any_known(random)
        }
    }

    fn any_known(&self, random: &mut SmallRng) -> Option<String> {
        (!self.known.is_empty())
            .then(|| self.known[random.random_range(0..self.known.len())].clone())
    }

    /// Whether the claim was won.
    fn transaction(&self, session: &mut Session, id: &str, random: &mut SmallRng) -> Result<bool> {
        if self.work == Work::ClaimAlone {
            let answer = session.execute("claim", &[id, DESTINATION])?;
            return Ok(self.side.won(&answer));
        }
        session.run("BEGIN")?;
        let answer = session.execute("claim", &[id, DESTINATION])?;
        let won = self.side.won(&answer);
        if won && self.work == Work::Business {
            let account = random.random_range(0..ACCOUNTS).to_string();
            let updated = session.execute("work", &[&account])?;
            ensure!(updated.rows == 1, "account {account} was not updated");
        } else if won {
            let recorded = session.execute("work", &[id, DESTINATION, EFFECTS])?;
            recorded.first.context("no message id")?;
        }
        session.run("COMMIT")?;
        Ok(won)
    }
}

/// The ids that a client has claimed a moment ago, the oldest first.
#[derive(Default)]
struct Recent(VecDeque<(Instant, String)>);

impl Recent {
    fn add(&mut self, id: String) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back((Instant::now(), id));
    }

    fn drop_old(&mut self) {
        while self
            .0
            .front()
            .is_some_and(|(since, _)| since.elapsed() > RECENT_FOR)
        {
            self.0.pop_front();
        }
    }

    fn any(&mut self, random: &mut SmallRng) -> Option<String> {
        self.drop_old();
        (!self.0.is_empty()).then(|| self.0[random.random_range(0..self.0.len())].1.clone())
    }

    fn ids(mut self) -> impl Iterator<Item = String> {
        self.drop_old();
        self.0.into_iter().map(|(_, id)| id)
    }
}

/// One effect of a size that business events have.
pub const EFFECTS: &str = r#"[{"topic": "orders.reserved", "key": "customer-4711", "type": "StockReserved", "payload": {"order": 4711, "warehouse": "north", "lines": [{"article": "A-1001", "quantity": 2}, {"article": "B-2002", "quantity": 1}], "total": "129.90"}}]"#;

/// A random uuid (version 4) as text: what most senders call their messages.
fn new_id(random: &mut SmallRng) -> String {
    let mut bytes = [0; 16];
    random.fill_bytes(&mut bytes);
    uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .to_string()
}
