//! Executes cases and reports the cases that fail.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use idem_testkit::{Database, Refusal, Session};

use super::format::{Call, Case, ExpectedError, FIRST_SESSION, Step};
use super::transfer::{Outcome, Transfer};
use super::value::{Cell, Saved, check};

/// The connections of a case and the values that its steps have saved.
struct Run<'a> {
    db: &'a Database,
    transfer: Transfer,
    sessions: BTreeMap<String, Session>,
    saved: Saved,
}

/// Executes the cases and returns one line for each case that fails: its name, the failed step and
/// the difference.
pub async fn failures(db: &Database, transfer: Transfer, cases: &[Case]) -> Vec<String> {
    let mut failures = Vec::new();
    for case in cases {
        let run = Run {
            db,
            transfer,
            sessions: BTreeMap::new(),
            saved: Saved::new(),
        };
        if let Err(error) = run.execute(case).await {
            failures.push(format!("{} ({transfer:?}): {error:#}", case.name));
        }
    }
    failures
}

impl Run<'_> {
    async fn execute(mut self, case: &Case) -> Result<()> {
        for (n, step) in case.steps.iter().enumerate() {
            self.step(step)
                .await
                .with_context(|| format!("step {}: {}", n + 1, step.sql()))?;
        }
        for session in self.sessions.values() {
            session.run("ROLLBACK").await?;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Statement(sql) => self.session(FIRST_SESSION).await?.run(sql).await,
            Step::Call(call) => {
                self.session(&call.session).await?;
                let session = &self.sessions[&call.session];
                let outcome = self.transfer.send(session, call, &self.saved).await?;
                judge(call, outcome, &mut self.saved)
            }
        }
    }

    async fn session(&mut self, name: &str) -> Result<&Session> {
        if !self.sessions.contains_key(name) {
            let session = self.db.connect_on_defaults().await?;
            session.run("SET statement_timeout = '60s'").await?;
            self.sessions.insert(name.to_owned(), session);
        }
        Ok(&self.sessions[name])
    }
}

fn judge(call: &Call, outcome: Outcome, saved: &mut Saved) -> Result<()> {
    match (outcome, &call.error) {
        (Ok(rows), None) => match &call.rows {
            Some(expected) => check_rows(expected, &rows, saved),
            None => Ok(()),
        },
        (Ok(rows), Some(expected)) => bail!("expected error {}, got {rows:?}", expected.sqlstate),
        (Err(error), expected) => {
            let Some(refusal) = error.as_db_error().map(Refusal::from) else {
                return Err(error.into());
            };
            match expected {
                Some(expected) => check_error(expected, &refusal),
                None => bail!("the statement fails: {refusal:?}"),
            }
        }
    }
}

fn check_rows(
    expected: &[Vec<serde_json::Value>],
    rows: &[Vec<Cell>],
    saved: &mut Saved,
) -> Result<()> {
    ensure!(
        expected.len() == rows.len(),
        "expected {} rows, got {rows:?}",
        expected.len()
    );
    for (n, (expected, row)) in expected.iter().zip(rows).enumerate() {
        ensure!(
            expected.len() == row.len(),
            "expected {} columns, got {row:?}",
            expected.len()
        );
        for (column, (expected, cell)) in expected.iter().zip(row).enumerate() {
            check(expected, cell, saved)
                .with_context(|| format!("row {}, column {}", n + 1, column + 1))?;
        }
    }
    Ok(())
}

fn check_error(expected: &ExpectedError, refusal: &Refusal) -> Result<()> {
    ensure!(
        expected.sqlstate == refusal.sqlstate,
        "expected SQLSTATE {}, got {refusal:?}",
        expected.sqlstate
    );
    ensure!(
        expected.hint == refusal.hint,
        "expected hint {:?}, got {:?} with: {}",
        expected.hint,
        refusal.hint,
        refusal.message
    );
    Ok(())
}
