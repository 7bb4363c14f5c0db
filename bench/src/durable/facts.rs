//! The rows that the jobs have written, and the processor time that the server has used for the
//! jobs.

use std::fs;

use anyhow::{Context, Result, ensure};
use idem_cluster::Cluster;

use crate::wire::Session;

/// The business table of every system: one row for each job, without a constraint that would reject
/// a second row.
pub struct Facts;

impl Facts {
    pub fn create(session: &mut Session) -> Result<()> {
        session.run(
            "CREATE TABLE fact (
                job     int8 NOT NULL,
                account int4 NOT NULL,
                amount  int8 NOT NULL,
                at      timestamptz NOT NULL DEFAULT clock_timestamp()
            )",
        )?;
        Ok(())
    }

    /// Returns the seconds from the first of these jobs to the last, and empties the table. Fails
    /// unless each job was done exactly once.
    pub fn take(session: &mut Session, first: u64, jobs: u64) -> Result<f64> {
        let amounts: u64 = (first..first + jobs).map(amount).sum();
        let seen = session.column(
            "SELECT unnest(ARRAY[count(*), count(DISTINCT job), min(job), max(job),
                                     sum(amount)::int8])
                   FROM fact",
        )?;
        let expected =
            [jobs, jobs, first, first + jobs - 1, amounts].map(|figure| figure.to_string());
        ensure!(
            seen == expected,
            "rows, jobs, first, last and sum are {seen:?} instead of {expected:?}"
        );
        let seconds = session.value("SELECT extract(epoch FROM max(at) - min(at)) FROM fact")?;
        session.run("TRUNCATE fact")?;
        Ok(seconds)
    }
}

/// Returns the n-th message. `job.mjs` makes the same message.
pub fn message(n: u64) -> serde_json::Value {
    serde_json::json!({
        "job": n,
        "account": n % 10_000,
        "amount": amount(n),
        "type": "StockReserved",
        "order": format!("order-{n}"),
        "warehouse": "north",
        "lines": [{ "article": "A-1001", "quantity": 2 }, { "article": "B-2002", "quantity": 1 }],
        "currency": "EUR",
    })
}

fn amount(n: u64) -> u64 {
    1 + n % 97
}

/// The processor time that the processes of a server have used, in ticks.
pub struct Cpu(u64);

/// The number of ticks in a second in the files of /proc.
const TICKS: f64 = 100.0;

impl Cpu {
    pub fn of(cluster: &Cluster) -> Result<Self> {
        let postmaster = cluster.pid().context("the server is not running")?;
        let mut ticks = 0;
        for entry in fs::read_dir("/proc")? {
            // A process may end while /proc is read, and is then skipped. The postmaster counts its
            // time as the time of a child that has ended.
            let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else {
                continue;
            };
            let Some((head, tail)) = stat.rsplit_once(')') else {
                continue;
            };
            let fields: Vec<&str> = tail.split_whitespace().collect();
            let number = |index: usize| {
                fields
                    .get(index)
                    .and_then(|field| field.parse::<u64>().ok())
                    .unwrap_or(0)
            };
            // proc(5): field 3 is the state, field 4 the parent. Fields 14 to 17 are the times; the
            // last two of them are the times of children that have ended.
            if head.starts_with(&format!("{postmaster} ")) {
                ticks += (11..15).map(number).sum::<u64>();
            } else if number(1) == u64::from(postmaster) {
                ticks += (11..13).map(number).sum::<u64>();
            }
        }
        Ok(Self(ticks))
    }

    pub fn us_since(&self, cluster: &Cluster) -> Result<f64> {
        Ok((Self::of(cluster)?.0 as f64 - self.0 as f64) / TICKS * 1e6)
    }
}
