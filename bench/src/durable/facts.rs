//! The rows that the jobs have written.

use anyhow::{Result, ensure};

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
