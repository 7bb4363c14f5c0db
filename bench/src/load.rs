//! Clients that claim. Each client is a thread with its own session, all clients use one side, and
//! every result is checked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use idem_cluster::Cluster;
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

use super::record::Record;
use super::server::{ACCOUNTS, BUSINESS};
use super::side::{DESTINATION, Side};
use super::wire::Session;

/// The number of its own ids that a client remembers to deliver again.
const RECENT: usize = 1_000;
/// The longest time that a client remembers an id. It is shorter than any measured retention, so a
/// claim of such an id must return a duplicate.
const RECENT_FOR: Duration = Duration::from_secs(5);

/// The content of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// BEGIN, claim, business update if the claim was won, COMMIT: four round trips, or three for a
    /// duplicate.
    Business,
    /// BEGIN, claim, record one effect if the claim was won, COMMIT.
    Effect,
    /// The claim in its own transaction.
    ClaimAlone,
}

/// The end of a load.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Time(Duration),
    /// After this number of transactions of all clients together.
    Count(u64),
}

/// Traffic against one side.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub cluster: &'a Cluster,
    pub side: Side,
    pub work: Work,
    pub clients: usize,
    /// The share of duplicates in percent. Half of them are ids that this client claimed recently,
    /// half of them are from `known`.
    pub duplicates: u32,
    pub synchronous_commit: bool,
    /// Ids that are claimed and stay retained while the load runs.
    pub known: &'a [String],
    pub until: Until,
    /// Where the latencies of the transactions are recorded.
    pub record: Option<&'a Record>,
}

/// The result of a load.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub transactions: u64,
    pub won: u64,
    pub seconds: f64,
}

impl Done {
    /// Returns the number of transactions per second.
    pub fn rate(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }
}

/// The state of a running load, for a function that runs beside it.
pub struct Progress {
    won: AtomicU64,
    tickets: AtomicU64,
    ended: AtomicBool,
    pids: Mutex<Vec<i32>>,
    ids: Mutex<Vec<String>>,
    started: Instant,
}

impl Progress {
    /// Returns the number of claims that have been won so far.
    pub fn won(&self) -> u64 {
        self.won.load(Ordering::Relaxed)
    }

    /// Returns whether all clients have stopped.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the process ids of the backends that serve the clients.
    pub fn pids(&self) -> Vec<i32> {
        self.pids
            .lock()
            .map(|pids| pids.clone())
            .unwrap_or_default()
    }

    /// Waits until `since_start` after the start of the load, or until the load has ended.
    pub fn wait_until(&self, since_start: Duration) {
        while !self.has_ended() && self.started.elapsed() < since_start {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Load<'_> {
    /// Runs the load.
    pub fn run(&self) -> Result<Done> {
        self.run_with(|_| Ok(())).map(|(done, _)| done)
    }

    /// Runs the load, and `beside` in parallel from the first transaction on. Returns when both
    /// have ended. Also returns the ids that each client claimed last.
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
                .map_err(|_| anyhow!("the function beside the load panicked"))??;
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
            Work::Business => session.prepare("work", BUSINESS)?,
            Work::Effect => {
                session.prepare("work", "SELECT idem_record_effects($1::text, $2, $3)")?
            }
            Work::ClaimAlone => {}
        }
        Ok(session)
    }

    /// Runs one client until the load ends. Returns the number of its transactions.
    fn client(&self, mut session: Session, progress: &Progress) -> Result<u64> {
        let mut random = SmallRng::from_rng(&mut rand::rng());
        let mut recent = Recent::default();
        let mut transactions = 0;
        let mut record = self.record.map(Record::of_client);
        while self.goes_on(progress) {
            let again = random.random_range(0..100) < self.duplicates;
            let known = if again {
                self.known_id(&mut recent, &mut random)
            } else {
                None
            };
            let expected = known.is_none();
            let id = known.unwrap_or_else(|| new_id(&mut random));
            let started = Instant::now();
            let won = self.transaction(&mut session, &id, &mut random)?;
            if let Some(record) = &mut record {
                record.add(progress.started.elapsed(), started.elapsed())?;
            }
            ensure!(
                won == expected,
                "{:?}: id {id} is {}, but the claim returned {won}",
                self.side,
                if expected { "new" } else { "a duplicate" }
            );
            if won {
                progress.won.fetch_add(1, Ordering::Relaxed);
                recent.add(id);
            }
            transactions += 1;
        }
        if let Ok(mut ids) = progress.ids.lock() {
            ids.extend(recent.ids());
        }
        if let Some(record) = record {
            record.end()?;
        }
        Ok(transactions)
    }

    fn goes_on(&self, progress: &Progress) -> bool {
        match self.until {
            Until::Time(time) => progress.started.elapsed() < time,
            Until::Count(count) => progress.tickets.fetch_add(1, Ordering::Relaxed) < count,
        }
    }

    /// Returns an id that has been claimed before, or `None` when there is no such id yet.
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

    /// Runs one transaction. Returns whether the claim was won.
    fn transaction(&self, session: &mut Session, id: &str, random: &mut SmallRng) -> Result<bool> {
        if self.work == Work::ClaimAlone {
            let result = session.execute("claim", &[id, DESTINATION])?;
            return Ok(self.side.won(&result));
        }
        session.run("BEGIN")?;
        let result = session.execute("claim", &[id, DESTINATION])?;
        let won = self.side.won(&result);
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

/// The ids that a client claimed recently, oldest first.
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

/// One effect with the size of a usual business event.
pub const EFFECTS: &str = concat!(
    r#"[{"topic": "orders.reserved", "key": "customer-4711", "type": "StockReserved", "#,
    r#""payload": {"order": 4711, "warehouse": "north", "lines": [{"article": "A-1001", "#,
    r#""quantity": 2}, {"article": "B-2002", "quantity": 1}], "total": "129.90"}}]"#,
);

/// Returns a random UUID (version 4) as text, which is the usual message id.
fn new_id(random: &mut SmallRng) -> String {
    let mut bytes = [0; 16];
    random.fill_bytes(&mut bytes);
    uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .to_string()
}
