//! The idem side: messages are received, leased in batches, and claimed together with the business
//! write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use idem_cluster::Cluster;
use serde_json::Value;
use uuid::Uuid;

use super::facts::message;
use super::{SENT_TOGETHER, WORKERS};
use crate::relay::row_columns;
use crate::wire::Session;

/// The number of messages that one `idem_next` leases.
const LEASED_TOGETHER: usize = 100;

const RECEIVE: &str =
    "SELECT count(*) FILTER (WHERE idem_receive((m->>'id')::uuid, $2, m->'payload'))
                         FROM jsonb_array_elements($1::jsonb) m";

const WORK: [(&str, &str); 4] = [
    (
        "next",
        "SELECT id, convert_from(payload, 'UTF8') FROM idem_next($1, $2::integer)",
    ),
    (
        "claimed business",
        "INSERT INTO fact (job, account, amount)
         SELECT $3, $4, $5 WHERE idem_try_claim($1::uuid, $2)",
    ),
    (
        "claims",
        "SELECT true = ALL (idem_try_claim_uuid_batch($1::uuid[], $2))",
    ),
    (
        "business",
        "INSERT INTO fact (job, account, amount) VALUES ($1, $2, $3)",
    ),
];

/// The number of jobs that share a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transactions {
    PerJob,
    /// All messages that were leased together.
    PerBatch,
}

/// A leased message: its id and its payload.
type Job = (String, Value);

impl Transactions {
    /// Returns the destination of the messages. The name of the database begins with it.
    pub fn destination(self) -> &'static str {
        match self {
            Self::PerJob => "idem-per-job",
            Self::PerBatch => "idem-per-batch",
        }
    }

    pub fn settings(self) -> String {
        let transaction = match self {
            Self::PerJob => {
                "each job is one statement, the business with `WHERE idem_try_claim(..)`"
            }
            Self::PerBatch => "BEGIN, idem_try_claim_uuid_batch, the business of each job, COMMIT",
        };
        format!(
            "idem_receive for {SENT_TOGETHER} messages in one statement; idem_next leases \
             {LEASED_TOGETHER}; {transaction}"
        )
    }

    /// Returns a query for the number of messages that are not completed.
    pub fn left(self) -> String {
        let destination = self.destination();
        format!(
            "SELECT coalesce(sum(waiting + leased), 0)::int8
               FROM idem.waiting_messages WHERE destination = '{destination}'"
        )
    }

    /// Sends these messages and returns the duration in seconds.
    pub fn enqueue(self, cluster: &Cluster, database: &str, first: u64, jobs: u64) -> Result<f64> {
        let end = first + jobs;
        let next = AtomicU64::new(first);
        run_in_parallel(
            sessions(cluster, database, &[("receive", RECEIVE)])?,
            |session| {
                let from = next.fetch_add(SENT_TOGETHER as u64, Ordering::Relaxed);
                if from >= end {
                    return Ok(false);
                }
                let messages: Value = (from..end.min(from + SENT_TOGETHER as u64))
                    .map(|n| serde_json::json!({ "id": Uuid::new_v4(), "payload": message(n) }))
                    .collect();
                let new =
                    session.execute("receive", &[&messages.to_string(), self.destination()])?;
                let sent = messages.as_array().map_or(0, Vec::len).to_string();
                ensure!(
                    new.text() == Some(&sent),
                    "{:?} of {sent} messages were new",
                    new.text()
                );
                Ok(true)
            },
        )
    }

    /// Processes and completes jobs until at least `jobs` jobs are done.
    pub fn drain(self, cluster: &Cluster, database: &str, jobs: u64) -> Result<()> {
        let done = AtomicU64::new(0);
        run_in_parallel(sessions(cluster, database, &WORK)?, |session| {
            let batch = self.next(session)?;
            match self {
                Self::PerJob => batch
                    .iter()
                    .try_for_each(|job| self.process_one(session, job))?,
                Self::PerBatch => self.process_all(session, &batch)?,
            }
            done.fetch_add(batch.len() as u64, Ordering::Relaxed);
            Ok(done.load(Ordering::Relaxed) < jobs)
        })?;
        Ok(())
    }

    /// Leases the next messages.
    fn next(self, session: &mut Session) -> Result<Vec<Job>> {
        let mut batch = Vec::new();
        session.execute_each(
            "next",
            &[self.destination(), &LEASED_TOGETHER.to_string()],
            |row| {
                let mut columns = row_columns(row.buffer());
                let id = columns.next().context("no id")??.to_owned();
                let payload = serde_json::from_str(columns.next().context("no payload")??)?;
                batch.push((id, payload));
                Ok(())
            },
        )?;
        Ok(batch)
    }

    fn process_one(self, session: &mut Session, (id, payload): &Job) -> Result<()> {
        let [job, account, amount] = business(payload);
        let answer = session.execute(
            "claimed business",
            &[id, self.destination(), &job, &account, &amount],
        )?;
        ensure!(answer.rows == 1, "message {id} was already claimed");
        Ok(())
    }

    fn process_all(self, session: &mut Session, jobs: &[Job]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = jobs.iter().map(|(id, _)| id.as_str()).collect();
        session.run("BEGIN")?;
        let answer = session.execute(
            "claims",
            &[&format!("{{{}}}", ids.join(",")), self.destination()],
        )?;
        ensure!(
            answer.is_true(),
            "one of {} messages was already claimed",
            ids.len()
        );
        for (_, payload) in jobs {
            let [job, account, amount] = business(payload);
            session.execute("business", &[&job, &account, &amount])?;
        }
        session.run("COMMIT")?;
        Ok(())
    }
}

/// Opens a session for each worker and prepares these statements in it.
fn sessions(
    cluster: &Cluster,
    database: &str,
    statements: &[(&str, &str)],
) -> Result<Vec<Session>> {
    (0..WORKERS)
        .map(|_| {
            let mut session = Session::connect(cluster, database)?;
            for (name, sql) in statements {
                session.prepare(name, sql)?;
            }
            Ok(session)
        })
        .collect()
}

/// Returns the parameters of the business statement.
fn business(payload: &Value) -> [String; 3] {
    ["job", "account", "amount"].map(|name| payload[name].to_string())
}

/// Runs `step` again and again on every session, each in its own thread, until `step` returns
/// false. Returns the seconds until all threads have ended. When a thread fails, the other threads
/// end too.
fn run_in_parallel(
    sessions: Vec<Session>,
    step: impl Fn(&mut Session) -> Result<bool> + Sync,
) -> Result<f64> {
    let failed = AtomicBool::new(false);
    let worker = &|mut session: Session| -> Result<()> {
        while !failed.load(Ordering::Relaxed) {
            let more = step(&mut session).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            if !more {
                break;
            }
        }
        Ok(())
    };
    let start = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = sessions
            .into_iter()
            .map(|session| scope.spawn(move || worker(session)))
            .collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a worker panicked"))??;
        }
        Ok(start.elapsed().as_secs_f64())
    })
}
