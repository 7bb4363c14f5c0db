//! Clients that work outside the transaction, and the check of their results. They run at the same
//! time as the clients that claim. They acquire, complete, release and abandon leases, make
//! external calls, and receive messages and process them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::{Client, Error, IsolationLevel};

use super::checker::{Answer, Fate, Handled, repeated};
use super::line::{connect, expect_kill, is_kill};
use super::run::Arena;

/// The server's clock in microseconds.
const CLOCK: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

const HANDLE: &str = "INSERT INTO handled (attempt, identity, before, after, xid) \
    VALUES ($1, $2, $3, $4, pg_current_xact_id())";

/// Makes the pending messages rotate at a small size, so that they rotate within a run of seconds.
/// Also gives the destination 1,000 attempts, so that retries practically do not end.
pub(super) const SCHEMA: &str = "
CREATE OR REPLACE FUNCTION idem.pending_is_large(rotation idem.pending_rotation) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_relation_size(idem.pending_table((rotation).current)) > 32768;
SELECT idem_configure_retries('stress', 1000, '5 milliseconds', 1, '5 milliseconds', 0)";

/// A lease that a client acquired: the clock before and after the function, and the time until
/// which the client certainly held the lease.
#[derive(Clone, Copy, Debug)]
pub struct Leased {
    pub identity: i64,
    pub token: i64,
    pub before: i64,
    pub after: i64,
    pub until: i64,
}

/// A completion that was committed.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    pub identity: i64,
    pub token: i64,
    pub before: i64,
}

/// The result of the beginning of an external call.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    pub call: Handled,
    pub is_new: bool,
    pub is_done: bool,
}

/// The results that one client received, for transactions that were reported committed.
#[derive(Debug, Default)]
pub struct Told {
    pub answers: Vec<Answer>,
    pub leases: Vec<Leased>,
    pub completed: Vec<Completed>,
    pub begun: Vec<Begun>,
    /// For each identity, the time at which the result of its call was certainly recorded.
    pub finished: Vec<Handled>,
    pub received: Vec<Handled>,
}

impl Told {
    fn add(&mut self, other: Told) {
        self.answers.extend(other.answers);
        self.leases.extend(other.leases);
        self.completed.extend(other.completed);
        self.begun.extend(other.begun);
        self.finished.extend(other.finished);
        self.received.extend(other.received);
    }
}

/// The result of the check. Every list must be empty.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Two leases of one message that were valid at the same time.
    pub two_holders: Vec<(Leased, Leased)>,
    /// An earlier and a later lease of one message, when the token of the later lease is not
    /// greater.
    pub token_order: Vec<(Leased, Leased)>,
    /// A completion with a token that was certainly lost, and the newer lease.
    pub zombies: Vec<(Completed, Leased)>,
    /// Two beginnings of one call that returned `new` within the retention.
    pub asked_twice: Vec<(Handled, Handled)>,
    /// Calls that returned another state than `done` within the retention, although their result
    /// was recorded.
    pub unfinished: Vec<Handled>,
    /// Messages that were received and never handled.
    pub lost: Vec<Handled>,
    pub leases: usize,
    pub completed: usize,
    pub calls: usize,
    pub received: usize,
    pub dead_letters: i64,
}

impl Verdict {
    /// Returns whether no violation was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.two_holders.is_empty()
            && self.token_order.is_empty()
            && self.zombies.is_empty()
            && self.asked_twice.is_empty()
            && self.unfinished.is_empty()
            && self.lost.is_empty()
            && self.dead_letters == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} leases, {} completed, {} calls, {} received; {} with two holders, \
             {} tokens out of order, {} zombies, {} calls new twice, {} unfinished, {} lost, \
             {} dead",
            self.leases,
            self.completed,
            self.calls,
            self.received,
            self.two_holders.len(),
            self.token_order.len(),
            self.zombies.len(),
            self.asked_twice.len(),
            self.unfinished.len(),
            self.lost.len(),
            self.dead_letters,
        )?;
        if let Some(pair) = self.two_holders.first() {
            write!(f, "\n  two holders: {pair:?}")?;
        }
        if let Some(pair) = self.token_order.first() {
            write!(f, "\n  tokens: {pair:?}")?;
        }
        if let Some(zombie) = self.zombies.first() {
            write!(f, "\n  zombie: {zombie:?}")?;
        }
        if let Some(pair) = self.asked_twice.first() {
            write!(f, "\n  call new twice: {pair:?}")?;
        }
        if let Some(call) = self.unfinished.first() {
            write!(f, "\n  unfinished: {call:?}")?;
        }
        if let Some(message) = self.lost.first() {
            write!(f, "\n  lost: {message:?}")?;
        }
        Ok(())
    }
}

/// Checks the results that the clients received. If the order of two events is uncertain, the check
/// assumes the order that is correct. `retention` is in microseconds.
#[must_use]
pub fn check(told: &Told, handled: &[Handled], retention: i64) -> Verdict {
    let mut verdict = Verdict {
        leases: told.leases.len(),
        completed: told.completed.len(),
        calls: told.begun.len(),
        received: told.received.len(),
        ..Verdict::default()
    };
    let mut leases: HashMap<i64, Vec<Leased>> = HashMap::new();
    for lease in &told.leases {
        leases.entry(lease.identity).or_default().push(*lease);
    }
    for of_one in leases.values() {
        for a in of_one {
            for b in of_one.iter().filter(|b| b.before > a.after) {
                if b.after < a.until {
                    verdict.two_holders.push((*a, *b));
                }
                if b.token <= a.token {
                    verdict.token_order.push((*a, *b));
                }
            }
        }
    }
    for completed in &told.completed {
        let newer = leases.get(&completed.identity).into_iter().flatten();
        for lease in
            newer.filter(|lease| lease.token > completed.token && lease.after < completed.before)
        {
            verdict.zombies.push((*completed, *lease));
        }
    }
    let new: Vec<_> = told
        .begun
        .iter()
        .filter(|begun| begun.is_new)
        .map(|begun| begun.call)
        .collect();
    verdict.asked_twice = repeated(&new, retention).0;
    let mut begun: HashMap<i64, Vec<&Begun>> = HashMap::new();
    for it in &told.begun {
        begun.entry(it.call.identity).or_default().push(it);
    }
    for finished in &told.finished {
        let later = begun.get(&finished.identity).into_iter().flatten();
        let forgotten = |it: &Begun| {
            it.call.before > finished.after
                && it.call.after < finished.before + retention
                && !it.is_done
        };
        verdict
            .unfinished
            .extend(later.filter(|it| forgotten(it)).map(|it| it.call));
    }
    let mut last: HashMap<i64, i64> = HashMap::new();
    for h in handled {
        let at = last.entry(h.identity).or_insert(h.after);
        *at = (*at).max(h.after);
    }
    let is_lost = |message: &&Handled| {
        last.get(&message.identity)
            .is_none_or(|at| *at < message.before)
    };
    verdict.lost = told.received.iter().filter(is_lost).copied().collect();
    verdict
}

/// Runs one client until the run ends. Returns the results that it received.
pub(super) async fn work(arena: Arc<Arena>, number: i64) -> Result<Told> {
    let mut worker = Worker {
        rng: SmallRng::seed_from_u64(arena.config.seed.wrapping_add(number as u64)),
        told: Told::default(),
        next_attempt: number << 40,
        arena,
    };
    while worker.arena.is_open() {
        let mut client = connect(&worker.arena.url).await?;
        while worker.arena.is_open() {
            let done = match worker.rng.random_range(0..10) {
                0..3 => worker.receive(&mut client).await,
                3..6 => worker.take_received(&mut client).await,
                _ => worker.lease(&mut client).await,
            };
            match done {
                Err(error) if is_lost(&error) => {}
                Err(error) => {
                    worker
                        .arena
                        .counts
                        .sessions_lost
                        .fetch_add(1, Ordering::Relaxed);
                    expect_kill(error)?;
                    break;
                }
                Ok(()) => {}
            }
        }
    }
    Ok(worker.told)
}

/// Returns whether the error means that another client holds the lease by now, or that a claim is
/// in progress.
fn is_lost(error: &Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|refusal| matches!(refusal.code().code(), "55000" | "55P03"))
}

struct Worker {
    arena: Arc<Arena>,
    rng: SmallRng,
    told: Told,
    next_attempt: i64,
}

impl Worker {
    fn any_level(&mut self) -> IsolationLevel {
        match self.rng.random_range(0..3) {
            0 => IsolationLevel::ReadCommitted,
            1 => IsolationLevel::RepeatableRead,
            _ => IsolationLevel::Serializable,
        }
    }

    fn draw(&mut self) -> i64 {
        self.arena.window.draw(1, &mut self.rng)[0]
    }

    fn at(&mut self, identity: i64, before: i64, after: i64) -> Handled {
        self.next_attempt += 1;
        Handled {
            attempt: self.next_attempt,
            identity,
            before,
            after,
        }
    }

    async fn receive(&mut self, client: &mut Client) -> Result<(), Error> {
        let (identity, level) = (self.draw(), self.any_level());
        let tx = client
            .build_transaction()
            .isolation_level(level)
            .start()
            .await?;
        let sql = format!(
            "SELECT {CLOCK}, idem_receive($1::text, 'stress', to_jsonb($1::text)), {CLOCK}"
        );
        let row = tx.query_one(&sql, &[&name(identity)]).await?;
        tx.commit().await?;
        if row.try_get(1)? {
            let received = self.at(identity, row.try_get(0)?, row.try_get(2)?);
            self.told.received.push(received);
        }
        Ok(())
    }

    async fn take_received(&mut self, client: &mut Client) -> Result<(), Error> {
        let lease_ms = self.rng.random_range(20..250);
        let before = clock(client).await?;
        let rows = client
            .query(
                "SELECT token, id FROM idem_next('stress', 4, $1 * interval '1 millisecond')",
                &[&f64::from(lease_ms)],
            )
            .await?;
        let after = clock(client).await?;
        let first = self.told.leases.len();
        for row in &rows {
            self.told.leases.push(Leased {
                identity: number(row.try_get(1)?),
                token: row.try_get(0)?,
                before,
                after,
                until: after,
            });
        }
        for n in first..self.told.leases.len() {
            match self.end(client, n, lease_ms).await {
                Err(error) if !is_lost(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn lease(&mut self, client: &mut Client) -> Result<(), Error> {
        let (identity, level) = (self.draw(), self.any_level());
        let lease_ms = self.rng.random_range(20..250);
        let tx = client
            .build_transaction()
            .isolation_level(level)
            .start()
            .await?;
        let sql = format!(
            "SELECT x.before, (x.l).outcome = 'acquired', (x.l).token, x.after
               FROM (SELECT {CLOCK} AS before,
                            idem_acquire($1::text, 'stress', $2 * interval '1 millisecond') AS l,
                            {CLOCK} AS after OFFSET 0) x"
        );
        let row = tx
            .query_one(&sql, &[&name(identity), &f64::from(lease_ms)])
            .await?;
        tx.commit().await?;
        if !row.try_get(1)? {
            return Ok(());
        }
        let after: i64 = row.try_get(3)?;
        let n = self.told.leases.len();
        self.told.leases.push(Leased {
            identity,
            token: row.try_get(2)?,
            before: row.try_get(0)?,
            after,
            until: after,
        });
        if self.rng.random_bool(0.5) {
            self.call(client, identity).await?;
        }
        self.end(client, n, lease_ms).await
    }

    /// Makes an external call for the message. The result of some calls is never recorded.
    async fn call(&mut self, client: &mut Client, identity: i64) -> Result<(), Error> {
        let sql = format!(
            "SELECT x.before, (x.c).state::text, x.after
               FROM (SELECT {CLOCK} AS before,
                            idem_begin_call($1::text, 'stress', 'charge') AS c,
                            {CLOCK} AS after OFFSET 0) x"
        );
        let row = client.query_one(&sql, &[&name(identity)]).await?;
        let state: String = row.try_get(1)?;
        let call = self.at(identity, row.try_get(0)?, row.try_get(2)?);
        self.told.begun.push(Begun {
            call,
            is_new: state == "new",
            is_done: state == "done",
        });
        if state != "done" && self.rng.random_bool(0.7) {
            let sql = format!(
                "SELECT {CLOCK},
                        idem_finish_call($1::text, 'stress', 'charge', '1') IS NULL,
                        {CLOCK}"
            );
            let row = client.query_one(&sql, &[&name(identity)]).await?;
            let finished = self.at(identity, row.try_get(0)?, row.try_get(2)?);
            self.told.finished.push(finished);
        }
        Ok(())
    }

    /// Ends a lease: abandons it, releases it, completes it in time or too late, or claims the
    /// message without the token.
    async fn end(&mut self, client: &mut Client, lease: usize, lease_ms: i32) -> Result<(), Error> {
        let Leased {
            identity,
            token,
            before,
            ..
        } = self.told.leases[lease];
        let runs_out = before + i64::from(lease_ms) * 1_000;
        let fate = self.rng.random_range(0..20);
        if fate < 3 {
            self.told.leases[lease].until = runs_out;
            return Ok(());
        }
        let works = self.rng.random_range(0.0..1.6) * f64::from(lease_ms) / 4.0;
        let overstays = self.rng.random_bool(0.15);
        let works = if overstays {
            f64::from(lease_ms) * 1.3
        } else {
            works
        };
        tokio::time::sleep(Duration::from_secs_f64(works / 1_000.0)).await;
        self.told.leases[lease].until = clock(client).await?.min(runs_out);
        match fate {
            3..7 => {
                let sql = "SELECT idem_release($1::text, 'stress', $2, 'not yet')";
                client
                    .query_one(sql, &[&name(identity), &token])
                    .await
                    .map(drop)
            }
            _ => {
                self.handle(client, identity, (fate < 16).then_some(token))
                    .await
            }
        }
    }

    /// Completes with the token, or claims when there is no token.
    async fn handle(
        &mut self,
        client: &mut Client,
        identity: i64,
        token: Option<i64>,
    ) -> Result<(), Error> {
        let function = match token {
            Some(token) => format!(
                "{}($1::text, 'stress', {token}) IS NOT NULL",
                self.arena.config.complete_function
            ),
            None => "idem_try_claim($1::text, 'stress')".to_owned(),
        };
        let tx = client.transaction().await?;
        let sql = format!("SELECT {CLOCK}, {function}, {CLOCK}");
        let row = tx.query_one(&sql, &[&name(identity)]).await?;
        let claim = self.at(identity, row.try_get(0)?, row.try_get(2)?);
        let claimed: bool = row.try_get(1)?;
        if claimed {
            tx.execute(
                HANDLE,
                &[&claim.attempt, &identity, &claim.before, &claim.after],
            )
            .await?;
        }
        let index = self.told.answers.len();
        self.told.answers.push(Answer {
            claim,
            claimed,
            fate: Fate::Unknown,
        });
        match tx.commit().await {
            Ok(()) => {
                self.told.answers[index].fate = Fate::Committed;
                if let Some(token) = token {
                    self.told.completed.push(Completed {
                        identity,
                        token,
                        before: claim.before,
                    });
                }
                Ok(())
            }
            Err(error) => {
                if !is_kill(&error) {
                    self.told.answers[index].fate = Fate::RolledBack;
                }
                Err(error)
            }
        }
    }
}

async fn clock(client: &Client) -> Result<i64, Error> {
    client
        .query_one(&format!("SELECT {CLOCK}"), &[])
        .await?
        .try_get(0)
}

fn name(identity: i64) -> String {
    format!("message {identity}")
}

fn number(name: &str) -> i64 {
    name.rsplit(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(-1)
}

/// The numbers of rotations of the pending messages and of the payloads.
#[derive(Debug, Default)]
pub(super) struct Rotations {
    pub pending: AtomicU64,
    pub payloads: AtomicU64,
}

/// Rotates the pending messages and the payloads until the run ends.
pub(super) async fn rotate(arena: Arc<Arena>) -> Result<()> {
    while arena.is_open() {
        let client = connect(&arena.url).await?;
        while arena.is_open() {
            tokio::time::sleep(Duration::from_millis(80)).await;
            for (sql, counter) in [
                ("SELECT idem.rotate_pending()", &arena.rotations.pending),
                (
                    "SELECT idem.rotate_payloads(65536, '100 milliseconds')",
                    &arena.rotations.payloads,
                ),
            ] {
                match client
                    .query_one(sql, &[])
                    .await
                    .and_then(|row| row.try_get::<_, bool>(0))
                {
                    Ok(rotated) => {
                        counter.fetch_add(u64::from(rotated), Ordering::Relaxed);
                    }
                    Err(error) => {
                        expect_kill(error)?;
                        break;
                    }
                }
            }
            if client.is_closed() {
                break;
            }
        }
    }
    Ok(())
}

/// The longest time that a drain may take. It is longer than the longest lease and retry delay.
const DRAINED_WITHIN: Duration = Duration::from_secs(30);

/// Claims every received message that is still pending.
pub(super) async fn drain(client: &Client) -> Result<()> {
    let deadline = Instant::now() + DRAINED_WITHIN;
    let mut attempt = 1_i64 << 60;
    loop {
        let rows = client
            .query("SELECT id FROM idem_next('stress', 1000, '1 minute')", &[])
            .await?;
        for row in &rows {
            let id: String = row.try_get(0)?;
            attempt += 1;
            client
                .execute(
                    &format!(
                        "WITH claim AS MATERIALIZED (
                             SELECT {CLOCK} AS before,
                                    idem_try_claim($1::text, 'stress') AS won,
                                    {CLOCK} AS after)
                         INSERT INTO handled (attempt, identity, before, after, xid)
                         SELECT $2, $3, before, after, pg_current_xact_id() FROM claim WHERE won"
                    ),
                    &[&id, &attempt, &number(&id)],
                )
                .await?;
        }
        let waiting: i64 = client
            .query_one(
                "SELECT count(*) FROM idem.pending WHERE payload_slice IS NOT NULL",
                &[],
            )
            .await?
            .try_get(0)?;
        if waiting == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("idem_next does not return {waiting} messages that are still pending");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Merges the results of all clients.
pub(super) fn together(told: Vec<Told>) -> Told {
    let mut all = Told::default();
    for one in told {
        all.add(one);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: i64 = 1_000;

    fn lease(token: i64, before: i64, until: i64) -> Leased {
        Leased {
            identity: 7,
            token,
            before,
            after: before + 10,
            until,
        }
    }

    fn call(before: i64, is_new: bool, is_done: bool) -> Begun {
        Begun {
            call: handled(before),
            is_new,
            is_done,
        }
    }

    fn handled(before: i64) -> Handled {
        Handled {
            attempt: before,
            identity: 7,
            before,
            after: before + 10,
        }
    }

    fn verdict_of(told: Told) -> Verdict {
        check(&told, &[], RETENTION)
    }

    fn leases(leases: &[Leased]) -> Told {
        Told {
            leases: leases.to_vec(),
            ..Told::default()
        }
    }

    #[test]
    fn only_leases_that_certainly_overlap_are_reported() {
        assert_eq!(
            verdict_of(leases(&[lease(1, 0, 100), lease(2, 50, 60)]))
                .two_holders
                .len(),
            1
        );
        assert!(verdict_of(leases(&[lease(1, 0, 100), lease(2, 90, 200)])).is_clean());
        assert!(verdict_of(leases(&[lease(1, 0, 100), lease(2, 5, 60)])).is_clean());
    }

    #[test]
    fn later_lease_without_a_greater_token_is_reported() {
        assert_eq!(
            verdict_of(leases(&[lease(2, 0, 20), lease(2, 50, 60)]))
                .token_order
                .len(),
            1
        );
    }

    #[test]
    fn completion_after_a_newer_lease_is_a_zombie() {
        let completed = |token, before| Told {
            completed: vec![Completed {
                identity: 7,
                token,
                before,
            }],
            ..leases(&[lease(1, 0, 20), lease(2, 50, 90)])
        };
        assert_eq!(verdict_of(completed(1, 70)).zombies.len(), 1);
        assert!(verdict_of(completed(1, 55)).is_clean());
        assert!(verdict_of(completed(2, 70)).is_clean());
    }

    #[test]
    fn call_new_twice_or_not_done_after_its_result_is_reported() {
        let begun = |begun: &[Begun], finished: &[i64]| Told {
            begun: begun.to_vec(),
            finished: finished.iter().map(|at| handled(*at)).collect(),
            ..Told::default()
        };
        assert_eq!(
            verdict_of(begun(&[call(0, true, false), call(500, true, false)], &[]))
                .asked_twice
                .len(),
            1
        );
        assert!(
            verdict_of(begun(&[call(0, true, false), call(500, false, false)], &[])).is_clean()
        );
        assert_eq!(
            verdict_of(begun(
                &[call(0, true, false), call(500, false, false)],
                &[100]
            ))
            .unfinished
            .len(),
            1
        );
        assert!(
            verdict_of(begun(
                &[call(0, true, false), call(500, false, true)],
                &[100]
            ))
            .is_clean()
        );
        assert!(
            verdict_of(begun(
                &[call(0, true, false), call(1_200, true, false)],
                &[100]
            ))
            .is_clean()
        );
    }

    #[test]
    fn received_message_that_is_not_handled_later_is_lost() {
        let told = Told {
            received: vec![handled(100)],
            ..Told::default()
        };
        assert_eq!(check(&told, &[handled(0)], RETENTION).lost.len(), 1);
        assert!(check(&told, &[handled(0), handled(150)], RETENTION).is_clean());
    }
}
