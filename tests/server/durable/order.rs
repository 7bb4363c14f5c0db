//! Tests of the order of messages: `idem_next` returns messages by due time and arrival, and leases
//! only one message of a key at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use idem_testkit::{DEADLINE, Database, until};
use tokio::task::JoinSet;

use super::{claim, fail, ids, next, receive};

#[tokio::test]
async fn messages_are_handed_out_in_order_of_arrival() -> Result<()> {
    let db = Database::with_idem("order").await?;
    let session = db.connect().await?;
    for id in ["a", "b", "c", "d"] {
        assert!(receive(&session, id, "").await?);
    }
    assert!(
        !receive(&session, "a", "").await?,
        "the message is known while it waits"
    );
    assert_eq!(ids(&next(&session, 3).await?), ["a", "b", "c"]);
    assert!(
        !receive(&session, "a", "").await?,
        "the message is known while it is leased"
    );
    assert_eq!(ids(&next(&session, 3).await?), ["d"]);
    assert_eq!(
        ids(&next(&session, 3).await?),
        [""; 0],
        "all messages are leased"
    );
    assert!(claim(&session, "a").await?);
    assert!(!claim(&session, "a").await?, "the message is claimed once");
    assert!(
        !receive(&session, "a", "").await?,
        "the message is known after it was handled"
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "3",
        "the claim deletes the pending message"
    );
    Ok(())
}

#[tokio::test]
async fn message_waits_for_earlier_messages_of_its_key_only() -> Result<()> {
    let db = Database::with_idem("keys").await?;
    let session = db.connect().await?;
    for (id, key) in [
        ("a1", "a"),
        ("a2", "a"),
        ("b1", "b"),
        ("a3", "a"),
        ("b2", "b"),
    ] {
        receive(&session, id, &format!(", key => '{key}'")).await?;
    }
    receive(&session, "free", "").await?;
    let first = next(&session, 10).await?;
    assert_eq!(ids(&first), ["a1", "b1", "free"]);
    assert_eq!(ids(&next(&session, 10).await?), [""; 0]);
    assert!(claim(&session, "a1").await?);
    let second = next(&session, 10).await?;
    assert_eq!(ids(&second), ["a2"], "b1 is still leased");
    // A failed message keeps its place. Later messages of its key wait until it is retried and
    // done.
    session
        .run("SELECT idem_configure_retries('mail', base => '1 hour', cap => '1 hour')")
        .await?;
    fail(&session, &second[0], "later").await?;
    assert_eq!(
        ids(&next(&session, 10).await?),
        [""; 0],
        "a2 waits for its retry, and a3 waits for a2"
    );
    session
        .run("UPDATE idem.pending_0 SET due_at = clock_timestamp() WHERE id = 'a2'")
        .await?;
    assert_eq!(ids(&next(&session, 10).await?), ["a2"]);
    assert!(claim(&session, "a2").await?);
    assert_eq!(ids(&next(&session, 10).await?), ["a3"]);
    Ok(())
}

#[tokio::test]
async fn message_that_is_not_due_delays_no_other_message() -> Result<()> {
    let db = Database::with_idem("delay").await?;
    let session = db.connect().await?;
    receive(
        &session,
        "later",
        ", key => 'k', deliver_after => now() + interval '1 hour'",
    )
    .await?;
    receive(
        &session,
        "soon",
        ", key => 's', deliver_after => clock_timestamp() + interval '300 milliseconds'",
    )
    .await?;
    receive(&session, "now", ", key => 'k'").await?;
    assert_eq!(ids(&next(&session, 10).await?), ["now"]);
    until("the message is due", async || {
        Ok(ids(&next(&session, 10).await?) == ["soon"])
    })
    .await?;
    let early = "SELECT clock_timestamp() >= received_at + interval '300 milliseconds' \
                 FROM idem.pending WHERE id = 'soon'";
    assert_eq!(
        session.text(early).await?,
        "t",
        "the message is not handed out before it is due"
    );
    // The message `later` becomes due while the message `now` of the same key is leased.
    session
        .run("UPDATE idem.pending_0 SET due_at = clock_timestamp() WHERE id = 'later'")
        .await?;
    assert_eq!(
        ids(&next(&session, 10).await?),
        [""; 0],
        "one message of a key is leased at a time"
    );
    assert!(claim(&session, "now").await?);
    assert_eq!(ids(&next(&session, 10).await?), ["later"]);
    Ok(())
}

/// A message has no attempt left, but an earlier message of its key is leased. It becomes a dead
/// letter when that message is done.
#[tokio::test]
async fn exhausted_message_waits_for_the_head_of_its_key() -> Result<()> {
    let db = Database::with_idem("exhausted").await?;
    let session = db.connect().await?;
    let later = ", key => 'k', deliver_after => now() + interval '1 hour'";
    receive(&session, "first", later).await?;
    receive(&session, "second", ", key => 'k'").await?;
    let failed = next(&session, 1).await?;
    assert_eq!(ids(&failed), ["second"]);
    fail(&session, &failed[0], "boom").await?;
    session
        .run("UPDATE idem.pending_0 SET due_at = clock_timestamp()")
        .await?;
    assert_eq!(ids(&next(&session, 1).await?), ["first"]);
    session
        .run("SELECT idem_configure_retries('mail', max_attempts => 1)")
        .await?;

    let states = "SELECT id, state FROM idem.pending ORDER BY id";
    assert_eq!(ids(&next(&session, 10).await?), [""; 0]);
    assert_eq!(session.text(states).await?, "first|l\nsecond|w");
    assert!(claim(&session, "first").await?);
    assert_eq!(ids(&next(&session, 10).await?), [""; 0]);
    assert_eq!(session.text(states).await?, "second|d");
    Ok(())
}

#[tokio::test]
async fn message_that_another_session_leases_is_skipped() -> Result<()> {
    let db = Database::with_idem("skip").await?;
    let (first, second) = (db.connect().await?, db.connect().await?);
    for id in ["a", "b", "c"] {
        receive(&first, id, "").await?;
    }
    first.run("BEGIN").await?;
    assert_eq!(ids(&next(&first, 1).await?), ["a"]);
    assert_eq!(
        ids(&next(&second, 1).await?),
        ["b"],
        "the second session does not wait"
    );
    first.run("ROLLBACK").await?;
    assert_eq!(
        ids(&next(&second, 2).await?),
        ["a", "c"],
        "the rollback released a"
    );
    Ok(())
}

/// Two messages of a key are due. A session cannot see the uncommitted lease of another session, so
/// it waits for that session and then leases no message of the key.
#[tokio::test]
async fn two_sessions_do_not_lease_two_messages_of_a_key() -> Result<()> {
    let db = Database::with_idem("race").await?;
    let (first, second) = (db.connect().await?, db.connect().await?);
    receive(
        &first,
        "early",
        ", key => 'k', deliver_after => now() + interval '1 hour'",
    )
    .await?;
    receive(&first, "late", ", key => 'k'").await?;
    first.run("BEGIN").await?;
    assert_eq!(ids(&next(&first, 1).await?), ["late"]);
    // The early message becomes due while the late message is being leased.
    second
        .run("UPDATE idem.pending_0 SET due_at = clock_timestamp() WHERE id = 'early'")
        .await?;
    let pid = second.pid().await?;
    let other = tokio::spawn(async move { next(&second, 1).await });
    db.until_blocked(pid).await?;
    first.run("COMMIT").await?;
    assert_eq!(ids(&other.await??), [""; 0]);
    Ok(())
}

/// Many messages wait behind the first message of their key. Later messages with another key or
/// without a key are not delayed.
#[tokio::test]
async fn long_queue_of_one_key_does_not_hide_other_messages() -> Result<()> {
    let db = Database::with_idem("deep").await?;
    let session = db.connect().await?;
    session
        .run(
            "SELECT idem_receive('hot' || n, 'mail', to_jsonb('hot' || n), key => 'hot') \
             FROM generate_series(1, 2000) n",
        )
        .await?;
    receive(&session, "cold", ", key => 'cold'").await?;
    receive(&session, "plain", "").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["hot1"]);
    assert_eq!(ids(&next(&session, 1).await?), ["cold"]);
    assert_eq!(ids(&next(&session, 1).await?), ["plain"]);
    assert_eq!(ids(&next(&session, 1).await?), [""; 0]);
    assert!(claim(&session, "hot1").await?);
    assert_eq!(ids(&next(&session, 10).await?), ["hot2"]);
    Ok(())
}

/// Eight consumers process messages with and without keys and release some of them. Each message is
/// handled once and in the order of its key, and no two messages of a key are ever leased together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_consumers_keep_the_order_of_every_key() -> Result<()> {
    const MESSAGES: usize = 600;
    const KEYS: usize = 7;
    let db = Database::with_idem("eight").await?;
    let session = db.connect().await?;
    super::without_back_off(&session, 1000).await?;
    for n in 0..MESSAGES {
        let key = match n % (KEYS + 1) {
            0 => String::new(),
            key => format!(", key => 'k{key}'"),
        };
        receive(&session, &format!("m{n}"), &key).await?;
    }
    session
        .run("CREATE TABLE handled (seq bigint GENERATED ALWAYS AS IDENTITY, id text)")
        .await?;
    let held: Arc<Mutex<BTreeMap<usize, String>>> = Arc::default();
    let mut consumers = JoinSet::new();
    for consumer in 0..8 {
        let session = db.connect().await?;
        let held = Arc::clone(&held);
        consumers.spawn(async move {
            for round in 0.. {
                let batch = next(&session, 1 + consumer % 4).await?;
                if batch.is_empty()
                    && session.text("SELECT count(*) FROM idem.pending").await? == "0"
                {
                    break;
                }
                for message in batch {
                    let key = message.id[1..].parse::<usize>()? % (KEYS + 1);
                    if key > 0 {
                        let other = held
                            .lock()
                            .map_err(|e| anyhow::anyhow!("{e}"))?
                            .insert(key, message.id.clone());
                        ensure!(
                            other.is_none(),
                            "{} and {other:?} are both held",
                            message.id
                        );
                    }
                    let free = |held: &Mutex<BTreeMap<usize, String>>| {
                        held.lock().map(|mut held| held.remove(&key)).is_ok()
                    };
                    let id = &message.id;
                    // Remove the message from `held` before another consumer can lease the next
                    // message of its key.
                    if (round + message.token) % 5 == 0 {
                        free(&held);
                        fail(&session, &message, "again").await?;
                    } else {
                        session
                            .run(&format!(
                                "BEGIN; INSERT INTO handled (id) SELECT '{id}' \
                                 WHERE idem_try_claim('{id}', 'mail')"
                            ))
                            .await?;
                        free(&held);
                        session.run("COMMIT").await?;
                    }
                }
            }
            anyhow::Ok(())
        });
    }
    let all = async {
        while let Some(consumer) = consumers.join_next().await {
            consumer??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(2 * DEADLINE, all)
        .await
        .context("the consumers do not handle all messages in time")??;
    let handled = session
        .text("SELECT substr(id, 2) FROM handled ORDER BY seq")
        .await?;
    let handled: Vec<usize> = handled.lines().map(str::parse).collect::<Result<_, _>>()?;
    assert_eq!(handled.len(), MESSAGES, "no message is handled twice");
    assert_eq!(
        handled.iter().collect::<BTreeSet<_>>().len(),
        MESSAGES,
        "no message is lost"
    );
    for key in 1..=KEYS {
        let of_key: Vec<_> = handled.iter().filter(|n| *n % (KEYS + 1) == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
    Ok(())
}
