//! One client. It runs transactions with claims and business writes at every isolation level, and
//! rolls some of them back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::{Client, Error, IsolationLevel, Statement, Transaction};

use super::checker::{Answer, Fate, Handled};
use super::line::{connect, expect_kill, is_kill};
use super::run::Arena;

/// A read that has no relation to the claims. A transaction repeats it to last some milliseconds
/// and several round trips, as real transactions do.
const WORK: &str = "SELECT pg_catalog.sum(weight) FROM work WHERE place = $1";

/// Returns a statement that reads the clock, claims, and reads the clock again. PostgreSQL
/// evaluates the target list from left to right.
fn claim_sql(function: &str) -> String {
    format!(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
         {function}($1, 'stress'), \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    )
}

const HANDLE: &str = "INSERT INTO handled (attempt, identity, before, after, xid) \
    VALUES ($1, $2, $3, $4, pg_current_xact_id())";

/// Claims until the run ends. Returns the results of all claims.
pub async fn work(arena: Arc<Arena>, number: i64) -> Result<Vec<Answer>> {
    let mut worker = Worker {
        rng: SmallRng::seed_from_u64(arena.config.seed.wrapping_add(number as u64)),
        results: Vec::new(),
        not_rolled_back: Vec::new(),
        next_attempt: number << 40,
        arena,
    };
    while worker.arena.is_open() {
        let client = connect(&worker.arena.url).await?;
        if let Err(error) = worker.session(client).await {
            worker
                .arena
                .counts
                .sessions_lost
                .fetch_add(1, Ordering::Relaxed);
            expect_kill(error)?;
        }
    }
    Ok(worker.results)
}

struct Worker {
    arena: Arc<Arena>,
    rng: SmallRng,
    results: Vec<Answer>,
    /// The claims of the current transaction that no savepoint rolled back, as indexes of
    /// `results`.
    not_rolled_back: Vec<usize>,
    next_attempt: i64,
}

struct Statements {
    claim: Statement,
    handle: Statement,
    work: Statement,
}

impl Worker {
    /// Runs transactions until the session is lost or the run ends.
    async fn session(&mut self, mut client: Client) -> Result<(), Error> {
        let statements = Statements {
            claim: client
                .prepare(&claim_sql(&self.arena.config.claim_function))
                .await?,
            handle: client.prepare(HANDLE).await?,
            work: client.prepare(WORK).await?,
        };
        while self.arena.is_open() {
            match self.transaction(&mut client, &statements).await {
                Err(error) if is_conflict(&error) && self.arena.config.conflicts_allowed => {}
                Err(error) if is_leased(&error) && self.arena.config.outside > 0 => {}
                other => other?,
            }
        }
        Ok(())
    }

    async fn transaction(
        &mut self,
        client: &mut Client,
        statements: &Statements,
    ) -> Result<(), Error> {
        let level = match self.rng.random_range(0..10) {
            0..4 => IsolationLevel::ReadCommitted,
            4..8 => IsolationLevel::RepeatableRead,
            _ => IsolationLevel::Serializable,
        };
        self.not_rolled_back.clear();
        let mut tx = client
            .build_transaction()
            .isolation_level(level)
            .start()
            .await?;
        if self.rng.random_bool(0.5) {
            // The first statement takes the snapshot, so the snapshot is some milliseconds older
            // than the claims.
            tx.batch_execute("SELECT 1").await?;
            let round_trips = self
                .rng
                .random_range(1..=self.arena.config.work_before_claims);
            self.do_work(&tx, statements, round_trips).await?;
        }
        let count = self.rng.random_range(1..5);
        for identity in self.arena.window.draw(count, &mut self.rng) {
            if self.rng.random_bool(0.25) {
                let mut savepoint = tx.transaction().await?;
                self.claim(&mut savepoint, statements, identity).await?;
                if self.rng.random_bool(0.4) {
                    savepoint.rollback().await?;
                    self.not_rolled_back.pop();
                } else {
                    savepoint.commit().await?;
                }
            } else {
                self.claim(&mut tx, statements, identity).await?;
            }
            let round_trips = self
                .rng
                .random_range(0..=self.arena.config.work_between_claims);
            self.do_work(&tx, statements, round_trips).await?;
        }
        if self.rng.random_bool(0.15) {
            tx.rollback().await?;
            return Ok(());
        }
        self.end_as(Fate::Unknown);
        match tx.commit().await {
            Ok(()) => {
                self.end_as(Fate::Committed);
                self.publish();
                Ok(())
            }
            Err(error) => {
                if !is_kill(&error) {
                    // The server rejected the commit.
                    self.end_as(Fate::RolledBack);
                }
                Err(error)
            }
        }
    }

    async fn claim(
        &mut self,
        tx: &mut Transaction<'_>,
        statements: &Statements,
        identity: i64,
    ) -> Result<(), Error> {
        let id = format!("message {identity}");
        let row = tx.query_one(&statements.claim, &[&id]).await?;
        let claimed: bool = row.try_get(1)?;
        let claim = Handled {
            attempt: self.next_attempt,
            identity,
            before: row.try_get(0)?,
            after: row.try_get(2)?,
        };
        self.next_attempt += 1;
        self.not_rolled_back.push(self.results.len());
        self.results.push(Answer {
            claim,
            claimed,
            fate: Fate::RolledBack,
        });
        if claimed {
            tx.execute(
                &statements.handle,
                &[&claim.attempt, &claim.identity, &claim.before, &claim.after],
            )
            .await?;
        }
        Ok(())
    }

    async fn do_work(
        &mut self,
        tx: &Transaction<'_>,
        statements: &Statements,
        round_trips: i32,
    ) -> Result<(), Error> {
        for _ in 0..round_trips {
            let place: i32 = self.rng.random_range(0..100);
            tx.query_one(&statements.work, &[&place]).await?;
        }
        Ok(())
    }

    /// Sets the fate of the claims of the transaction, except those that a savepoint rolled back.
    fn end_as(&mut self, fate: Fate) {
        for &n in &self.not_rolled_back {
            self.results[n].fate = fate;
        }
    }

    /// Passes the committed claims to the auditor.
    fn publish(&self) {
        let claims = self.not_rolled_back.iter().map(|&n| &self.results[n]);
        self.arena.publish(
            claims
                .filter(|result| result.claimed)
                .map(|result| result.claim),
        );
    }
}

/// Returns whether the error is 40001 or a deadlock. The broken variant that reads the ring with
/// the snapshot of its transaction cannot avoid these errors. Its deadlocks come from its plain
/// inserts.
fn is_conflict(error: &Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|db_error| matches!(db_error.code().code(), "40001" | "40P01"))
}

/// Returns whether the error means that another client, which works outside its transaction, has
/// leased the message.
fn is_leased(error: &Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|db_error| db_error.code().code() == "55P03")
}
