//! Executes cases and reports the cases that fail.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cases::{Case, ExpectedError, FIRST_SESSION, Step};
use crate::driver::{Driver, Outcome, Refusal};
use crate::value::{Cell, Saved, check};

/// Executes the cases and returns one line for each case that fails: its name, the failed step and
/// the difference.
pub async fn failures(driver: &mut impl Driver, cases: &[Case]) -> Vec<String> {
    let mut failures = Vec::new();
    for case in cases {
        let executed = execute(driver, case).await;
        let closed = driver.close().await;
        if let Err(error) = executed.and(closed) {
            failures.push(format!("{}: {error:#}", case.name));
        }
    }
    failures
}

async fn execute(driver: &mut impl Driver, case: &Case) -> Result<()> {
    let mut run = Run {
        driver,
        saved: Saved::new(),
        opened: Vec::new(),
    };
    for (n, step) in case.steps.iter().enumerate() {
        run.step(step)
            .await
            .with_context(|| format!("step {}: {}", n + 1, step.sql()))?;
    }
    // A connection that is lost fails the case, unless the driver opens another one by itself.
    for session in run.opened.clone() {
        run.succeed(&session, "ROLLBACK").await?;
    }
    Ok(())
}

/// One case that is being executed.
struct Run<'d, D> {
    driver: &'d mut D,
    saved: Saved,
    /// The connections that the case uses.
    opened: Vec<String>,
}

impl<D: Driver> Run<'_, D> {
    async fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Statement(sql) => {
                self.open(FIRST_SESSION).await?;
                self.succeed(FIRST_SESSION, sql).await
            }
            Step::Call(call) => {
                self.open(&call.session).await?;
                let outcome = self.send(&call.session, &call.sql, &call.arguments).await?;
                match (outcome, &call.error) {
                    (Ok(rows), None) => match &call.rows {
                        Some(expected) => check_rows(expected, &rows, &mut self.saved),
                        None => Ok(()),
                    },
                    (Ok(rows), Some(expected)) => {
                        bail!("expected error {}, got {rows:?}", expected.sqlstate)
                    }
                    (Err(refusal), Some(expected)) => check_error(expected, &refusal),
                    (Err(refusal), None) => bail!("the statement fails: {refusal:?}"),
                }
            }
        }
    }

    async fn open(&mut self, session: &str) -> Result<()> {
        if !self.opened.iter().any(|opened| opened == session) {
            self.opened.push(session.to_owned());
            self.succeed(session, "SET statement_timeout = '60s'")
                .await?;
        }
        Ok(())
    }

    async fn succeed(&mut self, session: &str, sql: &str) -> Result<()> {
        match self.send(session, sql, &[]).await? {
            Ok(_) => Ok(()),
            Err(refusal) => bail!("the statement fails: {refusal:?}"),
        }
    }

    async fn send(&mut self, session: &str, sql: &str, arguments: &[Value]) -> Result<Outcome> {
        self.driver
            .execute(session, sql, arguments, &self.saved)
            .await
    }
}

fn check_rows(expected: &[Vec<Value>], rows: &[Vec<Cell>], saved: &mut Saved) -> Result<()> {
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
