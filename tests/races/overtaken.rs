//! Tests of claimers that are overtaken: they have found no claim, and another session claims the
//! message before they insert. The first claimer in the hint of the slice uses an ordinary insert,
//! and deletes its row again.

use std::sync::Arc;

use anyhow::Result;
use idem_testkit::ring::{build_filters, make_due, rotate};
use idem_testkit::{Database, Pause, Session};
use tokio::task::JoinHandle;

use super::claims::start;

const CLAIM: &str = "BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT";
const ROWS: &str = "SELECT count(*) FROM idem.inbox_standard_0 WHERE id = 'm'";

/// A database whose slices have filters, a session that claims the message, and the claimers that
/// it overtakes.
struct Race {
    db: Database,
    /// Claims the message after the look-ups of the claimers.
    winner: Session,
    paused: Pause,
    claimers: Vec<Claimer>,
}

struct Claimer {
    pid: i32,
    result: JoinHandle<Result<String>>,
    /// A transaction that is open stays open.
    session: Arc<Session>,
}

impl Race {
    async fn new() -> Result<Self> {
        let db = Database::without_worker("overtaken").await?;
        let winner = db.connect().await?;
        winner
            .run("SELECT idem.intern_destination('orders')")
            .await?;
        build_filters(&winner).await?;
        let paused = Pause::hold(&db, "claim: after hint").await?;
        Ok(Race {
            db,
            winner,
            paused,
            claimers: Vec::new(),
        })
    }

    /// Starts a claimer, and waits until it has looked for the message and has added its claim to
    /// the hint. The claimer leaves out a rule.
    async fn add_claimer(&mut self, claim: &'static str, left_out: &str) -> Result<()> {
        let pid = self.start(claim, left_out, "claim: after hint").await?;
        self.paused.until_reached(pid).await
    }

    /// Starts a claimer that pauses at `point` and after its wait, if somebody holds these points.
    /// Returns its process id.
    async fn start(&mut self, claim: &'static str, left_out: &str, point: &str) -> Result<i32> {
        let session = Arc::new(self.db.connect().await?);
        session
            .run(&format!(
                "SET idem.leave_out = '{left_out}';
                 SET idem.pause_at = '{point}, claim: after wait'"
            ))
            .await?;
        let pid = session.pid().await?;
        let claimer = Arc::clone(&session);
        let result = tokio::spawn(async move { claimer.text(claim).await });
        self.claimers.push(Claimer {
            pid,
            result,
            session,
        });
        Ok(pid)
    }

    /// Claims the message in the session of the winner, whose transaction stays open. Then lets the
    /// claimers continue.
    async fn overtake(&self) -> Result<()> {
        let claim = "BEGIN; SELECT idem_try_claim('m', 'orders')";
        assert_eq!(self.winner.text(claim).await?, "t");
        self.paused.release_all().await
    }

    async fn until_blocked(&self) -> Result<()> {
        for claimer in &self.claimers {
            self.db.until_blocked(claimer.pid).await?;
        }
        Ok(())
    }

    /// Returns the results of the claimers, in the order of their text.
    async fn results(&mut self) -> Result<Vec<String>> {
        let mut results = Vec::new();
        for claimer in self.claimers.drain(..) {
            let result = claimer.result.await?;
            results.push(result.unwrap_or_else(|error| format!("{error:#}")));
        }
        results.sort_unstable();
        Ok(results)
    }
}

/// I1: a claimer whose ordinary insert conflicts deletes its row, and waits for the end of the
/// winner. Other claimers see its deleted row in progress. They do not wait for it when the winner
/// has committed.
#[tokio::test]
async fn i1_overtaken_claimer_waits_for_the_winner() -> Result<()> {
    for (end, result, for_others) in [
        ("COMMIT", "f", "duplicate"),
        ("ROLLBACK", "t", "in_progress"),
    ] {
        let mut race = Race::new().await?;
        race.add_claimer(CLAIM, "").await?;
        let waited = Pause::hold(&race.db, "claim: after wait").await?;
        let observer = race.db.connect().await?;
        race.overtake().await?;
        race.until_blocked().await?;
        let observed = "SELECT outcome FROM idem_claim('m', 'orders', wait => false)";
        assert_eq!(observer.text(observed).await?, "in_progress", "{end}");
        race.winner.run(end).await?;
        waited.until_reached(race.claimers[0].pid).await?;
        assert_eq!(observer.text(observed).await?, for_others, "{end}");
        waited.release().await?;
        assert_eq!(race.results().await?, [result], "{end}");
        assert_eq!(observer.text(ROWS).await?, "1", "{end}");
    }
    Ok(())
}

/// The broken variant: a claimer that keeps its row finds it when it looks again. The row is
/// committed, although no transaction has processed the message.
#[tokio::test]
async fn i1_overtaken_claimer_that_keeps_its_row_is_detected() -> Result<()> {
    let mut race = Race::new().await?;
    race.add_claimer(CLAIM, "insert: delete").await?;
    race.overtake().await?;
    assert_eq!(race.results().await?, ["f"]);
    race.winner.run("ROLLBACK").await?;
    assert_eq!(race.winner.text(ROWS).await?, "1");
    Ok(())
}

/// A claimer that does not wait and loses leaves no row in progress, although its transaction stays
/// open. When the winner is rolled back, the message can be claimed.
#[tokio::test]
async fn overtaken_claimer_that_does_not_wait_leaves_no_row() -> Result<()> {
    let claim = "BEGIN; SELECT outcome FROM idem_claim('m', 'orders', wait => false)";
    let mut race = Race::new().await?;
    race.add_claimer(claim, "").await?;
    race.overtake().await?;
    let session = Arc::clone(&race.claimers[0].session);
    assert_eq!(race.results().await?, ["in_progress"]);
    race.winner.run("ROLLBACK").await?;
    let other = "SELECT outcome FROM idem_claim('m', 'orders', wait => false)";
    assert_eq!(race.winner.text(other).await?, "claimed");
    session.run("COMMIT").await
}

/// I1: two claimers wait for the winner, which is rolled back. One of them gets the claim, and the
/// other is a duplicate. Only one of them has a deleted row, so they do not wait for each other.
#[tokio::test]
async fn i1_two_overtaken_claimers_do_not_deadlock() -> Result<()> {
    let mut race = Race::new().await?;
    race.add_claimer(CLAIM, "").await?;
    race.add_claimer(CLAIM, "").await?;
    race.overtake().await?;
    race.until_blocked().await?;
    race.winner.run("ROLLBACK").await?;
    assert_eq!(race.results().await?, ["f", "t"]);
    Ok(())
}

/// I1: another claimer waits for the winner and not for the claimer that lost, whose transaction
/// stays open. The row of the loser comes first in the index.
#[tokio::test]
async fn i1_claimer_does_not_wait_for_a_loser() -> Result<()> {
    let mut race = Race::new().await?;
    let claim = "BEGIN; SELECT idem_try_claim('m', 'orders')";
    let in_table = Pause::hold(&race.db, "insert: ordinary row").await?;
    let loser = race.start(claim, "", "insert: ordinary row").await?;
    in_table.until_reached(loser).await?;
    race.overtake().await?;
    in_table.release().await?;
    race.db.until_blocked(loser).await?;
    let other = race.start(CLAIM, "", "").await?;
    race.db.until_blocked(other).await?;
    let blockers = format!(
        "SELECT pg_blocking_pids({other}) = ARRAY[{}]",
        race.winner.pid().await?
    );
    assert_eq!(race.winner.text(&blockers).await?, "t");
    race.winner.run("COMMIT").await?;
    assert_eq!(race.results().await?, ["f", "f"]);
    Ok(())
}

/// `idem_forget` has deleted the claim of the winner. The claimer that lost waits for it, and its
/// deleted row is in progress. `idem_forget` does not wait for this row, so there is no deadlock,
/// and the claimer gets the claim.
#[tokio::test]
async fn i1_forget_does_not_wait_for_a_loser() -> Result<()> {
    let mut race = Race::new().await?;
    let in_table = Pause::hold(&race.db, "insert: ordinary row").await?;
    let loser = race.start(CLAIM, "", "insert: ordinary row").await?;
    in_table.until_reached(loser).await?;
    race.winner
        .run("SELECT idem_try_claim('m', 'orders')")
        .await?;
    let deleted = Pause::hold(&race.db, "forget: after current").await?;
    let forgets = race.db.connect().await?;
    deleted.arm(&forgets).await?;
    let pid = forgets.pid().await?;
    let forget = start(forgets, "SELECT idem_forget('m', 'orders')");
    deleted.until_reached(pid).await?;
    in_table.release().await?;
    race.until_blocked().await?;
    deleted.release().await?;
    assert_eq!(forget.await??, "t");
    assert_eq!(race.results().await?, ["t"]);
    assert_eq!(race.winner.text(ROWS).await?, "1");
    Ok(())
}

/// Two claimers are overtaken. Between their look-ups the filter becomes invalid, and a new one is
/// built. The builder leaves out a rule. Returns the results of the claimers.
async fn overtaken_around_a_rebuild(left_out: &str) -> Result<Vec<String>> {
    let mut race = Race::new().await?;
    let trigger = "ALTER TABLE idem.inbox_standard_0 DISABLE TRIGGER note_load";
    race.db.connect().await?.run(trigger).await?;
    race.add_claimer(CLAIM, "").await?;
    let copy = "INSERT INTO idem.inbox_standard_0 (key, claimed_at, destination)
                SELECT gen_random_uuid(), now(), id FROM idem.destination LIMIT 1";
    race.winner
        .run(&format!(
            "SET idem.leave_out = '{left_out}'; {copy};
             SELECT count(idem.build_filters(1)) FROM generate_series(1, 40)"
        ))
        .await?;
    race.add_claimer(CLAIM, "").await?;
    race.overtake().await?;
    race.until_blocked().await?;
    race.winner.run("ROLLBACK").await?;
    race.results().await
}

/// I1: the second claimer is the first in a new filter. This filter waits for the transaction of
/// the first claimer before it is complete, so the second one uses no ordinary insert.
#[tokio::test]
async fn i1_first_claimers_of_two_filters_do_not_deadlock() -> Result<()> {
    assert_eq!(overtaken_around_a_rebuild("").await?, ["f", "t"]);
    Ok(())
}

/// The broken variant: both claimers use an ordinary insert, so each waits for the deleted row of
/// the other. Either each claimer takes itself for the first, or the new filter does not wait for
/// the first claimer.
#[tokio::test]
async fn i1_two_ordinary_inserts_are_detected() -> Result<()> {
    let mut race = Race::new().await?;
    race.add_claimer(CLAIM, "claim: first").await?;
    race.add_claimer(CLAIM, "claim: first").await?;
    race.overtake().await?;
    race.until_blocked().await?;
    race.winner.run("ROLLBACK").await?;
    let of_claimers = race.results().await?;
    let of_filters = overtaken_around_a_rebuild("filter: wait for writers").await?;
    for results in [of_claimers, of_filters] {
        let is_deadlock = |result: &String| result.contains("40P01");
        assert!(results.iter().any(is_deadlock), "{results:?}");
    }
    Ok(())
}

/// I1: the messages of a small batch are claimed one by one. The first of two equal ids is
/// overtaken, and the second is a duplicate either way.
#[tokio::test]
async fn i1_overtaken_batch_waits_for_the_winner() -> Result<()> {
    let batch = "BEGIN; SELECT idem_try_claim_batch(ARRAY['m', 'm'], 'orders'); COMMIT";
    for (end, result) in [("COMMIT", "{f,f}"), ("ROLLBACK", "{t,f}")] {
        let mut race = Race::new().await?;
        race.add_claimer(batch, "").await?;
        race.overtake().await?;
        race.until_blocked().await?;
        race.winner.run(end).await?;
        assert_eq!(race.results().await?, [result], "{end}");
        assert_eq!(race.winner.text(ROWS).await?, "1", "{end}");
    }
    Ok(())
}

/// I1: the claimer entered while the ring was opening, so it writes two slices, both with ordinary
/// inserts. It is overtaken in the second of them by a session that entered after the rotation. If
/// this session commits, the claimer is a duplicate and deletes its rows in both slices.
#[tokio::test]
async fn i1_claimer_is_overtaken_in_the_next_slice() -> Result<()> {
    for (end, result, rows) in [("COMMIT", "f", "0|1"), ("ROLLBACK", "t", "1|1")] {
        let race = Race::new().await?;
        let (db, maintainer) = (&race.db, &race.winner);
        race.paused.release_all().await?;
        let (open, claimer, winner) = (
            db.connect().await?,
            db.connect().await?,
            Arc::new(db.connect().await?),
        );
        open.run("BEGIN; SELECT idem_try_claim('open', 'orders')")
            .await?;
        make_due(maintainer, "standard").await?;
        assert_eq!(rotate(maintainer, "standard").await?, "opened");
        // The rotation waits for the transactions of this moment, and not for the claimer.
        assert_eq!(rotate(maintainer, "standard").await?, "waiting");
        build_filters(maintainer).await?;

        let in_current = Pause::hold(db, "insert: ordinary row").await?;
        claimer
            .run("SET idem.pause_at = 'claim: after hint, insert: ordinary row'")
            .await?;
        let pid = claimer.pid().await?;
        let claim = start(claimer, CLAIM);
        in_current.until_reached(pid).await?;
        open.run("COMMIT").await?;
        assert_eq!(rotate(maintainer, "standard").await?, "rotated");

        let looked = Pause::hold(db, "claim: before insert").await?;
        looked.arm(&winner).await?;
        let winner_pid = winner.pid().await?;
        let wins = Arc::clone(&winner);
        let won = tokio::spawn(async move {
            wins.text("BEGIN; SELECT idem_try_claim('m', 'orders')")
                .await
        });
        looked.until_reached(winner_pid).await?;
        let in_hint = Pause::hold(db, "claim: after hint").await?;
        in_current.release().await?;
        in_hint.until_reached(pid).await?;
        looked.release().await?;
        assert_eq!(won.await??, "t");
        let is_ordinary = Pause::hold(db, "insert: ordinary row").await?;
        in_hint.release().await?;
        is_ordinary.until_reached(pid).await?;
        is_ordinary.release().await?;
        db.until_blocked(pid).await?;
        winner.run(end).await?;
        assert_eq!(claim.await??, result, "{end}");
        let in_slices = "SELECT (SELECT count(*) FROM idem.inbox_standard_0 WHERE id = 'm'),
                                (SELECT count(*) FROM idem.inbox_standard_1 WHERE id = 'm')";
        assert_eq!(maintainer.text(in_slices).await?, rows, "{end}");
    }
    Ok(())
}
