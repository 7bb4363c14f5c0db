//! Tests of I4 and I5 with processes that die: one process at a time holds the lease of a
//! partition, the lease expires, and effects that were not acknowledged are delivered again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use idem_testkit::{Database, Session, until};

use super::reader::{Batch, Effect, Reader, send};

async fn until_expired(session: &Session) -> Result<()> {
    until("the lease has expired", async || {
        let expired = "SELECT bool_and(leased_until < clock_timestamp()) FROM idem.relays \
                       WHERE leased_until IS NOT NULL";
        Ok(session.text(expired).await? == "t")
    })
    .await
}

#[tokio::test]
async fn i5_lease_excludes_others_and_token_ends_with_lease() -> Result<()> {
    let db = Database::with_idem("lease").await?;
    let session = db.connect().await?;
    send(&session, "a").await?;
    send(&session, "b").await?;

    let first = Reader::of(&db, "default").await?.lease("500 milliseconds");
    let second = Reader::of(&db, "default").await?;
    let old = first.batch().await?;
    assert_eq!(second.next().await?, None, "the batch is leased");
    until_expired(&session).await?;
    let new = second.batch().await?;
    assert_eq!(new.ids(), old.ids(), "the same messages");
    assert!(
        new.token > old.token,
        "token {} after token {}",
        new.token,
        old.token
    );

    let stale = |call: &str| format!("SELECT {}", call.replace("$token", &old.token.to_string()));
    let ack = first
        .session
        .refused(&stale("idem_relay_ack('default', 0, $token)"))
        .await?;
    assert_eq!(ack.sqlstate, "55000", "{ack:?}");
    let park = format!(
        "idem_relay_park('default', 0, $token, '{}', 'broken')",
        old.ids()[0]
    );
    let park = first.session.refused(&stale(&park)).await?;
    assert_eq!(park.sqlstate, "55000", "{park:?}");

    second.ack(new.token).await?;
    let twice = second
        .session
        .refused(&format!(
            "SELECT idem_relay_ack('default', 0, {})",
            new.token
        ))
        .await?;
    assert_eq!(
        twice.sqlstate, "55000",
        "an acknowledged batch has no lease: {twice:?}"
    );
    assert_eq!(second.next().await?, None);
    Ok(())
}

#[tokio::test]
async fn i5_extended_lease_excludes_others_under_a_new_token() -> Result<()> {
    let db = Database::with_idem("extend").await?;
    let first = Reader::of(&db, "default").await?.lease("500 milliseconds");
    let second = Reader::of(&db, "default").await?;
    send(&first.session, "a").await?;
    let batch = first.batch().await?;
    let token = first.extend(batch.token, "1 hour").await?;
    until("the first lease would have expired", async || {
        let over =
            "SELECT clock_timestamp() > max(written_at) + '500 milliseconds' FROM idem.progress";
        Ok(second.session.text(over).await? == "t")
    })
    .await?;
    assert_eq!(second.next().await?, None, "the extended lease is held");
    let ack = format!("SELECT idem_relay_ack('default', 0, {})", batch.token);
    assert_eq!(
        first.session.refused(&ack).await?.sqlstate,
        "55000",
        "the old token is no longer valid"
    );
    first.ack(token).await?;
    assert_eq!(second.next().await?, None);
    Ok(())
}

#[tokio::test]
async fn i4_returned_batch_is_redelivered_at_once() -> Result<()> {
    let db = Database::with_idem("back").await?;
    let first = Reader::of(&db, "default").await?;
    let second = Reader::of(&db, "default").await?;
    send(&first.session, "a").await?;
    let batch = first.batch().await?;
    first.extend(batch.token, "1 millisecond").await?;
    until_expired(&first.session).await?;
    let again = second.batch().await?;
    assert_eq!(again.ids(), batch.ids());
    second.ack(again.token).await?;
    assert_eq!(first.next().await?, None);
    Ok(())
}

/// I5: no other process has leased the batch after the lease expired, so the late acknowledgement
/// is valid.
#[tokio::test]
async fn i5_late_ack_is_valid_while_batch_is_not_leased_again() -> Result<()> {
    let db = Database::with_idem("slow").await?;
    let relay = Reader::of(&db, "default").await?.lease("1 millisecond");
    send(&relay.session, "a").await?;
    let batch = relay.batch().await?;
    until_expired(&relay.session).await?;
    relay.ack(batch.token).await?;
    assert_eq!(relay.next().await?, None);
    Ok(())
}

#[tokio::test]
async fn i4_relay_that_dies_before_ack_publishes_same_ids_again() -> Result<()> {
    let db = Database::with_idem("dies").await?;
    let session = db.connect().await?;
    for says in ["a", "b", "c"] {
        send(&session, says).await?;
    }
    let dying = Reader::of(&db, "default")
        .await?
        .limit(2)
        .lease("500 milliseconds");
    let published = dying.batch().await?;
    terminate(&session, dying.session.pid().await?).await?;
    assert!(
        dying.ack(published.token).await.is_err(),
        "the connection of the dying relay still works"
    );

    let successor = Reader::of(&db, "default").await?.limit(2);
    let again = until_batch(&successor).await?;
    assert_eq!(again.ids(), published.ids());
    successor.ack(again.token).await?;
    assert_eq!(successor.drained().await?, ["c"]);
    Ok(())
}

#[tokio::test]
async fn i4_relay_that_dies_before_commit_leaves_no_lease() -> Result<()> {
    let db = Database::with_idem("uncommitted").await?;
    let session = db.connect().await?;
    send(&session, "a").await?;
    let dying = Reader::of(&db, "default").await?;
    dying.session.run("BEGIN").await?;
    let taken = dying.batch().await?;
    terminate(&session, dying.session.pid().await?).await?;
    let successor = Reader::of(&db, "default").await?;
    assert_eq!(
        successor.batch().await?.ids(),
        taken.ids(),
        "the batch is available at once, although the lease was for an hour"
    );
    Ok(())
}

/// I5: while a step of a partition is running, other steps of this partition wait until it has
/// ended.
#[tokio::test]
async fn i5_steps_of_one_partition_are_serialized() -> Result<()> {
    let db = Database::with_idem("steps").await?;
    let first = Reader::of(&db, "default").await?;
    send(&first.session, "a").await?;
    first.session.run("BEGIN").await?;
    let batch = first.batch().await?;
    let second = Reader::of(&db, "default").await?;
    let pid = second.session.pid().await?;
    let waits = tokio::spawn(async move { second.next().await });
    db.until_blocked(pid).await?;
    first.session.run("COMMIT").await?;
    assert_eq!(
        waits.await??,
        None,
        "the second step finds the lease of the first step"
    );
    first.ack(batch.token).await?;
    Ok(())
}

/// I5: a relay is dropped while a step waits for the lock of the relay. The step must fail and not
/// continue without the lock.
#[tokio::test]
async fn i5_step_that_waits_for_a_dropped_relay_fails() -> Result<()> {
    let db = Database::with_idem("gone").await?;
    let (session, waiter) = (db.connect().await?, db.connect().await?);
    send(&session, "a").await?;
    session
        .run("BEGIN; SELECT idem_drop_relay('default')")
        .await?;
    let pid = waiter.pid().await?;
    let waits = tokio::spawn(async move {
        waiter
            .refused("SELECT * FROM idem_relay_next('default')")
            .await
    });
    db.until_blocked(pid).await?;
    session.run("COMMIT").await?;
    assert_eq!(waits.await??.sqlstate, "42704");
    assert_eq!(
        session.text("SELECT count(*) FROM idem.progress").await?,
        "0",
        "the failed step has leased no batch"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_one_process_holds_the_lease_of_a_partition() -> Result<()> {
    const EFFECTS: usize = 400;
    let db = Database::with_idem("overlap").await?;
    let session = db.connect().await?;
    let says: Vec<String> = (0..EFFECTS).map(|n| n.to_string()).collect();
    for says in &says {
        send(&session, says).await?;
    }
    // The leases do not expire during the test, so a process that holds a lease is the only holder
    // until it acknowledges its batch.
    let holders = Arc::new(AtomicUsize::new(0));
    let published: Arc<Mutex<Vec<Effect>>> = Arc::default();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let reader = Reader::of(&db, "default").await?.limit(3);
        let (holders, published) = (Arc::clone(&holders), Arc::clone(&published));
        workers.spawn(async move {
            while published.lock().map_or(0, |p| p.len()) < EFFECTS {
                let Some(batch) = reader.next().await? else {
                    continue;
                };
                let others = holders.fetch_add(1, Ordering::SeqCst);
                anyhow::ensure!(others == 0, "{others} others hold the partition");
                // This statement stands for a request to the broker.
                reader.session.run("SELECT").await?;
                published
                    .lock()
                    .map_err(|e| anyhow::anyhow!("{e}"))?
                    .extend(batch.effects);
                holders.fetch_sub(1, Ordering::SeqCst);
                reader.ack(batch.token).await?;
            }
            anyhow::Ok(())
        });
    }
    let all = async {
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(idem_testkit::DEADLINE, all)
        .await
        .context("the processes do not publish all effects in time")??;
    let published = published.lock().map_err(|e| anyhow::anyhow!("{e}"))?;
    assert!(
        published.iter().map(|effect| &effect.says).eq(&says),
        "each effect is published once and in order"
    );
    Ok(())
}

/// I5: with leases that expire very early, effects are delivered again, but an acknowledged effect
/// is never delivered again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_short_leases_acknowledge_each_effect_once() -> Result<()> {
    const EFFECTS: usize = 200;
    let db = Database::with_idem("short").await?;
    let session = db.connect().await?;
    for n in 0..EFFECTS {
        send(&session, &n.to_string()).await?;
    }
    let acknowledged: Arc<Mutex<Vec<(i64, Effect)>>> = Arc::default();
    let stale = Arc::new(AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let reader = Reader::of(&db, "default")
            .await?
            .limit(3)
            .lease("1 millisecond");
        let (acknowledged, stale) = (Arc::clone(&acknowledged), Arc::clone(&stale));
        workers.spawn(async move {
            while acknowledged.lock().map_or(0, |a| a.len()) < EFFECTS {
                let Some(batch) = reader.next().await? else {
                    continue;
                };
                // For every third token the broker takes longer than the lease.
                let takes = if batch.token % 3 == 0 { "0.003" } else { "0" };
                reader
                    .session
                    .run(&format!("SELECT pg_sleep({takes})"))
                    .await?;
                match reader.ack(batch.token).await {
                    Ok(()) => {
                        let mut all = acknowledged.lock().map_err(|e| anyhow::anyhow!("{e}"))?;
                        all.extend(
                            batch
                                .effects
                                .into_iter()
                                .map(|effect| (batch.token, effect)),
                        );
                    }
                    Err(error) => {
                        let code = error
                            .downcast_ref::<tokio_postgres::Error>()
                            .and_then(|e| e.code());
                        anyhow::ensure!(code.is_some_and(|c| c.code() == "55000"), "{error:#}");
                        stale.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            anyhow::Ok(())
        });
    }
    let all = async {
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(idem_testkit::DEADLINE, all)
        .await
        .context("the processes do not publish all effects in time")??;
    let mut acknowledged = acknowledged.lock().map_err(|e| anyhow::anyhow!("{e}"))?;
    let ids: BTreeSet<_> = acknowledged
        .iter()
        .map(|(_, effect)| effect.message_id)
        .collect();
    assert_eq!(
        (acknowledged.len(), ids.len()),
        (EFFECTS, EFFECTS),
        "each effect is acknowledged once"
    );
    acknowledged.sort_by_key(|(token, _)| *token);
    assert!(
        acknowledged.is_sorted_by_key(|(_, effect)| effect.seq),
        "a newer token acknowledges no effect before those of an older token"
    );
    assert!(
        stale.load(Ordering::Relaxed) > 0,
        "no lease was lost to another process, so this tests nothing"
    );
    Ok(())
}

async fn terminate(session: &Session, pid: i32) -> Result<()> {
    let gone = session
        .text(&format!("SELECT pg_terminate_backend({pid}, 5000)"))
        .await?;
    anyhow::ensure!(gone == "t", "backend {pid} does not end");
    Ok(())
}

async fn until_batch(reader: &Reader) -> Result<Batch> {
    let mut found = None;
    until("the lease of the dead relay expires", async || {
        found = reader.next().await?;
        Ok(found.is_some())
    })
    .await?;
    found.context("no batch was leased")
}

/// I4. Goal: what a batch waits for is shown until the batch is acknowledged, also if another
/// process leases the batch in between.
#[tokio::test]
async fn i4_what_a_batch_waits_for_is_shown() -> Result<()> {
    let db = Database::with_idem("waits_for").await?;
    let relay = Reader::of(&db, "default").await?;
    let session = db.connect().await?;
    send(&session, "waits").await?;
    let waits_for = "SELECT waits_for FROM idem.relays";
    let batch = relay.batch().await?;
    let long = format!(
        "SELECT idem_relay_extend('default', 0, {}, '1 minute', repeat('x', 8193))",
        batch.token
    );
    let token = session.text(&long).await?;
    assert_eq!(session.text(waits_for).await?, "x".repeat(2000));
    session
        .run(&format!(
            "SELECT idem_relay_extend('default', 0, {token}, '1 millisecond', 'topic t: no stream')"
        ))
        .await?;
    assert_eq!(session.text(waits_for).await?, "topic t: no stream");
    let mut again = None;
    until("the lease has ended", async || {
        again = relay.next().await?;
        Ok(again.is_some())
    })
    .await?;
    assert_eq!(session.text(waits_for).await?, "topic t: no stream");
    let detail = session
        .text("SELECT status, detail FROM idem_health() WHERE check_name = 'relay default/0'")
        .await?;
    assert!(detail.starts_with("warning|"), "{detail}");
    assert!(
        detail.contains("it waits for topic t: no stream"),
        "{detail}"
    );
    relay.ack(again.map_or(0, |batch| batch.token)).await?;
    assert_eq!(
        session
            .text("SELECT waits_for IS NULL FROM idem.relays")
            .await?,
        "t"
    );
    Ok(())
}
