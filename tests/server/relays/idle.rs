//! Tests of I7 and I11: a poll of a partition without effects of its own writes nothing, however
//! busy the other partitions are.

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session};

use super::reader::{Reader, send_key};

/// Creates the relay `two` with two partitions. Returns a key of partition 0.
async fn two_partitions(session: &Session) -> Result<String> {
    session.run("SELECT idem_create_relay('two', 2)").await?;
    for n in 0..64 {
        let key = format!("key {n}");
        send_key(session, &key, "first").await?;
        let partition =
            format!("SELECT partition FROM idem.outbox WHERE key = '{key}' AND relay = 'two'");
        if session.text(&partition).await? == "0" {
            return Ok(key);
        }
    }
    anyhow::bail!("no key is in partition 0")
}

/// What a server without other activity has written: the next transaction id and the position in
/// the WAL.
async fn written(session: &Session) -> Result<(u64, u64)> {
    let row = session
        .query_one(
            "SELECT idem.next_xid()::text, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::text",
            &[],
        )
        .await?;
    Ok((
        row.get::<_, String>(0).parse()?,
        row.get::<_, String>(1).parse()?,
    ))
}

/// Sends effects to partition 0, which acknowledges them, and returns how many transaction ids and
/// bytes of WAL as many polls of partition 1 have used.
async fn cost_of_polls(
    session: &Session,
    busy: &Reader,
    idle: &Reader,
    key: &str,
    rounds: i32,
) -> Result<(u64, u64)> {
    let (mut xids, mut bytes) = (0, 0);
    for round in 0..rounds {
        let says = format!("round {round}");
        send_key(session, key, &says).await?;
        let before = written(session).await?;
        assert_eq!(idle.next().await?, None);
        let after = written(session).await?;
        xids += after.0 - before.0;
        bytes += after.1 - before.1;
        assert_eq!(busy.drained().await?, [says]);
    }
    Ok((xids, bytes))
}

/// I11: polls of an idle partition assign no transaction id and write no WAL while another
/// partition has effects.
#[tokio::test]
async fn i11_poll_without_own_effects_writes_nothing() -> Result<()> {
    const ROUNDS: i32 = 50;
    let db = Database::without_worker("idle_polls").await?;
    let session = db.connect().await?;
    let key = two_partitions(&session).await?;
    let busy = Reader::of(&db, "two").await?;
    let idle = Reader::of(&db, "two").await?.partition(1);
    busy.drained().await?;
    idle.drained().await?;
    let (xids, bytes) = cost_of_polls(&session, &busy, &idle, &key, ROUNDS).await?;
    assert_eq!(xids, 0, "transaction ids of {ROUNDS} polls");
    // The server itself logs the running transactions from time to time.
    ensure!(
        bytes < 500,
        "{ROUNDS} polls have written {bytes} bytes of WAL"
    );
    Ok(())
}

/// I5: the cursor of an idle partition moves past many effects of other partitions once, and then
/// its polls write nothing again. It reads the effects of its own that follow.
#[tokio::test]
async fn i5_idle_cursor_skips_many_effects_once() -> Result<()> {
    let db = Database::without_worker("idle_skip").await?;
    let session = db.connect().await?;
    let key = two_partitions(&session).await?;
    let idle = Reader::of(&db, "two").await?.partition(1);
    idle.drained().await?;
    let many = format!(
        "SELECT count(idem_send('things', to_jsonb('many'::text), '{key}')) \
         FROM generate_series(1, 3000)"
    );
    // A late transaction, whose numbers are below the floor.
    let late = db.connect().await?;
    late.run(&format!("BEGIN; {many}")).await?;
    for late_one in [false, true] {
        session.run(&many).await?;
        if late_one {
            late.run("COMMIT").await?;
        }
        let before = written(&session).await?;
        for _ in 0..20 {
            assert_eq!(idle.next().await?, None);
        }
        let after = written(&session).await?;
        assert_eq!(after.0 - before.0, 1, "transaction ids of 20 polls");
    }
    // Keys of both partitions.
    for n in 0..64 {
        send_key(&session, &format!("key {n}"), "own").await?;
    }
    let waiting = "SELECT count(*) FROM idem.outbox WHERE relay = 'two' AND partition = 1";
    let waiting: usize = session.text(waiting).await?.parse()?;
    ensure!(waiting > 0, "no key is in partition 1");
    assert_eq!(idle.drained().await?.len(), waiting);
    Ok(())
}

/// I5: an effect of the own partition behind effects of another one is found, also if it is of a
/// late transaction.
#[tokio::test]
async fn i5_late_effect_among_those_of_others_is_read() -> Result<()> {
    let db = Database::without_worker("idle_late").await?;
    let session = db.connect().await?;
    two_partitions(&session).await?;
    let idle = Reader::of(&db, "two").await?.partition(1);
    idle.drained().await?;
    let late = db.connect().await?;
    late.run("BEGIN").await?;
    for n in 0..64 {
        send_key(&late, &format!("key {n}"), "late").await?;
    }
    // The cursor moves beyond the numbers of the late transaction.
    for n in 0..64 {
        send_key(&session, &format!("key {n}"), "early").await?;
    }
    let early = idle.drained().await?;
    ensure!(
        !early.is_empty() && early.iter().all(|says| says == "early"),
        "{early:?}"
    );
    late.run("COMMIT").await?;
    assert_eq!(idle.drained().await?, vec!["late"; early.len()]);
    Ok(())
}
