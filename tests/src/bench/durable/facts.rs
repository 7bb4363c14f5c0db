//! What was done, and what it cost the server.

use std::fs;

use anyhow::{Context, Result, ensure};
use idem_cluster::Cluster;

use crate::bench::wire::Session;

/// The business table of every system: a row for each job, nothing that would refuse a second.
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

    /// The seconds from the first of these jobs to the last; fails unless each was done exactly
    /// once. Then there are none.
    pub fn take(session: &mut Session, first: u64, jobs: u64) -> Result<f64> {
        let amounts: u64 = (first..first + jobs).map(amount).sum();
        let seen = session
            .column("SELECT unnest(ARRAY[count(*), count(DISTINCT job), min(job), max(job), sum(amount)::int8]) FROM fact")?;
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

/// The n-th message, the same as that of `job.mjs`.
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

/// The processor time that a server's processes have used.
pub struct Cpu(u64);

/// In the files of /proc a second has so many ticks.
const TICKS: f64 = 100.0;

impl Cpu {
    pub fn of(cluster: &Cluster) -> Result<Self> {
        let postmaster = cluster.pid().context("the server does not run")?;
        let mut ticks = 0;
        for entry in fs::read_dir("/proc")? {
            // A process may end while it is looked at: then its time is that of its parent's
            // children.
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
            // proc(5): state is field 3; 4 is the parent, 14 to 17 are the times, the last two
            // those of children that ended.
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
