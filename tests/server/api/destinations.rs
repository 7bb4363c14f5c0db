//! I6 during changes by an operator: destinations move between rings, and every claim is still
//! found.

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Session};

const RING: &str = "SELECT r.name FROM idem.destination d JOIN idem.ring r ON r.id = d.ring
                     WHERE d.name = 'orders'";

/// I6: after a destination has moved between rings, its claims and effects are found in every
/// session.
#[tokio::test]
async fn i6_move_between_rings_keeps_claims() -> Result<()> {
    let db = Database::with_idem("moves").await?;
    // The test uses two sessions. The consumer does not configure the destination, so its cache
    // contains the state before the move.
    let (admin, consumer) = (db.connect().await?, db.connect().await?);
    let mut claimed = Vec::new();
    for (n, (retention, ring)) in [
        (None, "standard"),
        (Some("30 minutes"), "short"),
        (Some("30 days"), "long"),
        (Some("2 hours"), "standard"),
        (Some("1 hour"), "short"),
        (Some("7 days"), "standard"),
    ]
    .into_iter()
    .enumerate()
    {
        if let Some(retention) = retention {
            admin
                .run(&format!("SELECT idem_configure('orders', '{retention}')"))
                .await?;
        }
        let id = format!("m{n}");
        let record = format!(
            r#"SELECT idem_try_record('{id}', 'orders', '{{"topic": "t", "payload": {n}}}')"#
        );
        assert_eq!(consumer.text(&record).await?, "t");
        assert_eq!(consumer.text(RING).await?, ring);
        claimed.push((id, ring));
        for (n, (id, ring)) in claimed.iter().enumerate() {
            for session in [&admin, &consumer] {
                assert_eq!(
                    session
                        .text(&format!(
                            "SELECT idem_try_claim('{id}', 'orders'),
                                    idem_is_claimed('{id}', 'orders'),
                                    (SELECT convert_from(payload, 'UTF8')
                                      FROM idem_effects('{id}', 'orders'))"
                        ))
                        .await?,
                    format!("f|t|{n}")
                );
            }
            assert_eq!(
                consumer
                    .text(&format!("SELECT ring FROM idem.inbox WHERE id = '{id}'"))
                    .await?,
                *ring,
                "a claim stays in the ring in which it was made"
            );
        }
    }
    for (id, _) in &claimed {
        assert_eq!(
            admin
                .text(&format!("SELECT idem_forget('{id}', 'orders')"))
                .await?,
            "t"
        );
        assert_eq!(
            consumer
                .text(&format!("SELECT idem_is_claimed('{id}', 'orders')"))
                .await?,
            "f"
        );
    }
    Ok(())
}

/// I2: a transaction can claim a message, move the destination to another ring, and then record the
/// effects of the claim.
#[tokio::test]
async fn i2_effects_are_recorded_after_a_move_between_rings() -> Result<()> {
    let db = Database::with_idem("moves_before_effects").await?;
    let session = db.connect().await?;
    // The first transaction also creates the destination. The second one moves it twice.
    for (id, moves) in [
        ("m1", "SELECT idem_configure('orders', '30 days')"),
        (
            "m2",
            "SELECT idem_configure('orders', '30 minutes'),
                    idem_configure('orders', '7 days')",
        ),
    ] {
        let record = format!(
            r#"SELECT idem_record_effects('{id}', 'orders', '[{{"topic": "t", "payload": 1}}]')"#
        );
        session
            .run(&format!("BEGIN; SELECT idem_try_claim('{id}', 'orders')"))
            .await?;
        session.run(moves).await?;
        session.run(&record).await?;
        session.run("COMMIT").await?;
        assert_eq!(
            session
                .text(&format!("SELECT topic FROM idem_effects('{id}', 'orders')"))
                .await?,
            "t",
            "{id}"
        );
        // The claim is committed, so a later transaction cannot record effects for it.
        let refusal = session.refused(&record).await?;
        assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    }
    Ok(())
}

/// `idem_configure` creates the destination when it has no claim yet.
#[tokio::test]
async fn destination_can_be_configured_before_its_first_claim() -> Result<()> {
    let db = Database::with_idem("configured_first").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_configure('orders', '30 days')")
        .await?;
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m1', 'orders')")
            .await?,
        "t"
    );
    assert_eq!(
        session
            .text("SELECT ring, destination FROM idem.inbox")
            .await?,
        "long|orders"
    );
    Ok(())
}

/// I6: a change of a retention fails with 22023 when the ring would become too short for one of its
/// destinations, when the order of the rings would change, or when no ring is long enough for the
/// retention of a destination. The outbox keeps effects longer than every ring keeps claims.
#[tokio::test]
async fn i6_settings_keep_configured_retentions() -> Result<()> {
    let db = Database::with_idem("promised").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_configure('orders', '45 minutes')")
        .await?;
    for call in [
        "idem_set_retention('short', '30 minutes')",
        "idem_set_retention('short', '8 days')",
        "idem_set_retention('standard', '59 minutes')",
        "idem_set_retention('standard', '31 days')",
        "idem_set_retention('long', '6 days')",
        "idem_configure('orders', '31 days')",
    ] {
        let refusal = session.refused(&format!("SELECT {call}")).await?;
        assert_eq!(refusal.sqlstate, "22023", "{call}: {refusal:?}");
    }
    assert_eq!(session.text(RING).await?, "short");
    session
        .run(
            "SELECT idem_set_retention('long', '1 year');
             SELECT idem_set_retention('standard', '31 days');
             SELECT idem_set_retention('short', '50 minutes')",
        )
        .await?;
    assert_eq!(
        session
            .text("SELECT name, retention FROM idem.ring ORDER BY id")
            .await?,
        "short|00:50:00\nstandard|31 days\nlong|1 year\noutbox|1 year 6 mons",
        "the outbox keeps effects longer than every ring keeps claims"
    );
    Ok(())
}

/// I6: a change of a retention sees the destinations that were configured before it, whatever the
/// isolation level is: at other levels than READ COMMITTED it fails. A destination never has a
/// longer retention than its ring.
#[tokio::test]
async fn i6_old_snapshot_changes_no_retention() -> Result<()> {
    let db = Database::with_idem("old_snapshot").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        session
            .run("SELECT idem_configure('orders', '1 minute')")
            .await?;
        for (before, change) in [
            (
                "idem_configure('orders', '45 minutes')",
                "idem_set_retention('short', '10 minutes')",
            ),
            (
                "idem_set_retention('short', '10 minutes')",
                "idem_configure('orders', '45 minutes')",
            ),
        ] {
            other
                .run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1"))
                .await?;
            session.run(&format!("SELECT {before}")).await?;
            let refusal = other.refused(&format!("SELECT {change}")).await?;
            assert_eq!(refusal.sqlstate, "25000", "{level}: {change}: {refusal:?}");
            other.run("ROLLBACK").await?;
            let too_long = "SELECT count(*) FROM idem.destination d JOIN idem.ring r
                                ON r.id = d.ring WHERE d.retention > r.retention";
            assert_eq!(session.text(too_long).await?, "0", "{level}: {change}");
            session
                .run(
                    "SELECT idem_configure('orders', '1 minute'),
                            idem_set_retention('short', '1 hour')",
                )
                .await?;
        }
    }
    Ok(())
}

/// I11: the open transaction of the first claim of a destination does not delay other messages of
/// the destination, and does not make them `in_progress`.
#[tokio::test]
async fn i11_first_claim_of_a_destination_blocks_no_other() -> Result<()> {
    let db = Database::with_idem("first_claim").await?;
    let (first, other) = (db.connect().await?, db.connect().await?);
    first
        .run("BEGIN; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    other.run("SET lock_timeout = '1s'").await?;
    for (call, result) in [
        (
            "outcome FROM idem_claim('m2', 'orders', wait => false)",
            "claimed",
        ),
        ("idem_try_claim('m3', 'orders')", "t"),
        (
            "idem_try_claim_batch('{m4, m5}', 'orders') IS NOT NULL",
            "t",
        ),
        ("outcome FROM idem_acquire('m6', 'orders')", "acquired"),
        ("idem_receive('m7', 'orders', '1'::jsonb) IS NOT NULL", "t"),
        ("state FROM idem_begin_call('m8', 'orders', 'ask')", "new"),
        (
            "outcome FROM idem_claim('m1', 'orders', wait => false)",
            "in_progress",
        ),
    ] {
        assert_eq!(
            other.text(&format!("BEGIN; SELECT {call}; COMMIT")).await?,
            result,
            "{call}"
        );
    }
    first.run("ROLLBACK").await?;
    assert_eq!(
        other
            .text("SELECT count(*), count(DISTINCT destination) FROM idem.inbox")
            .await?,
        "4|1"
    );
    assert_eq!(
        first
            .text("SELECT idem_try_claim('m1', 'orders'), idem_try_claim('m2', 'orders')")
            .await?,
        "t|f"
    );
    Ok(())
}

/// I1: a destination that a rolled back transaction created keeps its number, in every session and
/// with every snapshot.
#[tokio::test]
async fn i1_rolled_back_destination_keeps_its_number() -> Result<()> {
    let db = Database::with_idem("rolled_back").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    other
        .run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await?;
    session
        .run(
            "BEGIN; SAVEPOINT s; SELECT idem_try_claim('m1', 'orders'); ROLLBACK TO SAVEPOINT s;
             SELECT idem_try_claim('m2', 'orders'); ROLLBACK",
        )
        .await?;
    let known = "SELECT id, ring, name FROM idem.destination";
    assert_eq!(session.text(known).await?, "1|1|orders");
    assert_eq!(other.text(known).await?, "1|1|orders");
    assert_eq!(
        other.text("SELECT idem_try_claim('m1', 'orders')").await?,
        "t"
    );
    other.run("COMMIT").await?;
    other
        .run("SELECT idem_configure('orders', '30 days')")
        .await?;
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m1', 'orders'), idem_try_claim('m2', 'orders')")
            .await?,
        "f|t"
    );
    assert_eq!(session.text(known).await?, "1|2|orders");
    Ok(())
}

/// I1: a crash keeps a destination that another transaction created and a committed claim uses,
/// also when the creator never ended.
#[tokio::test]
async fn i1_crash_keeps_a_destination_that_a_claim_uses() -> Result<()> {
    let mut cluster = Cluster::builder(&Install::from_env()?)
        .name("destination-crash")
        .setting("shared_buffers", "32MB")
        .start()?;
    Session::superuser(&cluster, "postgres")
        .await?
        .run("CREATE EXTENSION idem")
        .await?;
    let (creator, other) = (
        Session::superuser(&cluster, "postgres").await?,
        Session::superuser(&cluster, "postgres").await?,
    );
    creator
        .run("BEGIN; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    other
        .run("BEGIN; SELECT idem_try_claim('m2', 'orders'); COMMIT")
        .await?;
    cluster.kill()?;
    cluster.start()?;
    let session = Session::superuser(&cluster, "postgres").await?;
    assert_eq!(
        session
            .text("SELECT id, name FROM idem.destination")
            .await?,
        "1|orders"
    );
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m1', 'orders'), idem_try_claim('m2', 'orders')")
            .await?,
        "t|f"
    );
    // The indexes and the heap agree, and every tool can read the row.
    for tool in [
        "CREATE EXTENSION amcheck",
        "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) idem.destination",
        "REINDEX TABLE idem.destination",
        "VACUUM FULL idem.destination",
    ] {
        session.run(tool).await?;
    }
    assert_eq!(
        session
            .text(
                "SELECT (SELECT count(*) FROM verify_heapam('idem.destination')),
                        bt_index_check('idem.destination_name_key', true)"
            )
            .await?,
        "0|"
    );
    Ok(())
}

/// I1: while a publication contains the destinations, the creation is part of its transaction:
/// subscribers get no row of a transaction that rolls back. Other sessions wait for the creator.
#[tokio::test]
async fn i1_published_destination_is_created_by_its_commit() -> Result<()> {
    let db = Database::with_idem("published").await?;
    let (first, other) = (db.connect().await?, db.connect().await?);
    first
        .run("CREATE PUBLICATION everything FOR ALL TABLES")
        .await?;
    first
        .run("BEGIN; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    let pid = other.pid().await?;
    let claim = tokio::spawn(async move {
        other
            .text("SELECT outcome FROM idem_claim('m2', 'orders', wait => false)")
            .await
    });
    db.until_blocked(pid).await?;
    first.run("ROLLBACK").await?;
    assert_eq!(claim.await??, "claimed");
    assert_eq!(
        first.text("SELECT id, name FROM idem.destination").await?,
        "1|orders"
    );
    Ok(())
}

/// A transaction that is retried uses up one destination number, however often it rolls back.
#[tokio::test]
async fn retried_transaction_uses_up_one_number() -> Result<()> {
    let db = Database::with_idem("numbers").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    for _ in 0..100 {
        session
            .run("BEGIN; SELECT idem_try_claim('m', 'one'); ROLLBACK")
            .await?;
        other
            .run("BEGIN; SAVEPOINT s; SELECT idem_try_claim('m', 'two'); ROLLBACK TO s; COMMIT")
            .await?;
    }
    session
        .run("BEGIN; SELECT idem_try_claim('m', 'kept'); COMMIT")
        .await?;
    assert_eq!(
        session
            .text("SELECT id, name FROM idem.destination ORDER BY id")
            .await?,
        "1|one\n2|two\n3|kept"
    );
    assert_eq!(
        session
            .text("SELECT idem_remove_destination('one'), idem_remove_destination('two')")
            .await?,
        "t|t"
    );
    Ok(())
}

/// Sessions that create destinations concurrently, and roll some of them back, do not fail. Each
/// destination has its own number, without gaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrently_created_destinations_have_unique_numbers() -> Result<()> {
    const SESSIONS: usize = 6;
    const NAMES: usize = 100;
    let db = Database::with_idem("at_once").await?;
    let mut tasks = Vec::new();
    for session_number in 0..SESSIONS {
        let session = db.connect().await?;
        tasks.push(tokio::spawn(async move {
            for n in 0..NAMES {
                let end = if n % 3 == 0 { "ROLLBACK" } else { "COMMIT" };
                session
                    .run(&format!(
                        "BEGIN; SELECT idem_try_claim('m', 'name {session_number} {n}'); {end}"
                    ))
                    .await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    let session = db.connect().await?;
    let (created, kept) = (
        SESSIONS * NAMES,
        SESSIONS * (0..NAMES).filter(|n| n % 3 != 0).count(),
    );
    assert_eq!(
        session
            .text("SELECT count(*), count(DISTINCT id), max(id) FROM idem.destination")
            .await?,
        format!("{created}|{created}|{created}")
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.inbox").await?,
        kept.to_string()
    );
    Ok(())
}

/// A destination can be removed when nothing refers to it, and every session drops it from its
/// cache.
#[tokio::test]
async fn destination_is_removed_when_nothing_refers_to_it() -> Result<()> {
    let db = Database::with_idem("removed").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    for (name, use_it) in [
        ("claimed", "SELECT idem_try_claim('m', 'claimed')"),
        ("leased", "SELECT idem_acquire('m', 'leased')"),
        (
            "received",
            "SELECT idem_receive('m', 'received', '1'::jsonb)",
        ),
        ("called", "SELECT idem_begin_call('m', 'called', 'ask')"),
        (
            "effects",
            r#"SELECT idem_try_record('m', 'effects', '{"topic": "t", "payload": 1}'),
                      idem_forget('x', 'effects')"#,
        ),
    ] {
        session.run(&format!("BEGIN; {use_it}; COMMIT")).await?;
        let refusal = session
            .refused(&format!("SELECT idem_remove_destination('{name}')"))
            .await?;
        assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
        assert!(
            !refusal.hint.is_empty() && refusal.detail.contains("idem."),
            "{refusal:?}"
        );
    }

    assert_eq!(
        session
            .text("SELECT idem_remove_destination('unknown')")
            .await?,
        "f"
    );
    // The configuration of a destination is removed with it.
    session
        .run(
            "SELECT idem_configure('unused', '30 minutes');
             SELECT idem_configure_retries('unused', 3)",
        )
        .await?;
    assert_eq!(
        other.text("SELECT idem_is_claimed('m', 'unused')").await?,
        "f"
    );
    let names = "SELECT count(*) FROM idem.destination";
    assert_eq!(session.text(names).await?, "6");
    assert_eq!(
        session
            .text("SELECT idem_remove_destination('unused')")
            .await?,
        "t"
    );
    assert_eq!(session.text(names).await?, "5");
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.retry_policy")
            .await?,
        "0"
    );
    // Both sessions had cached the destination in ring `short`. A new claim creates the destination
    // again, so the claim goes into the default ring.
    other
        .run("BEGIN; SELECT idem_try_claim('m', 'unused'); COMMIT")
        .await?;
    assert_eq!(
        session
            .text("SELECT ring FROM idem.inbox WHERE destination = 'unused'")
            .await?,
        "standard"
    );
    let health = "SELECT status FROM idem_health() WHERE check_name = 'destinations'";
    assert_eq!(session.text(health).await?, "ok");
    session
        .run(
            "INSERT INTO idem.destination (id, name) SELECT n, n
               FROM generate_series(1000, 101000) n",
        )
        .await?;
    assert_eq!(session.text(health).await?, "warning");
    Ok(())
}

/// I10: a program that passes the id as the destination and the destination as the id creates a
/// destination for each message. Health reports the first one.
#[tokio::test]
async fn i10_health_reports_destinations_that_are_ids() -> Result<()> {
    let db = Database::with_idem("swapped").await?;
    let session = db.connect().await?;
    let health = "SELECT status, detail FROM idem_health() WHERE check_name = 'destinations'";
    session
        .run("SELECT idem_try_claim('m1', 'orders of 0192f3a4-0000-7abc-8def-0123456789ab')")
        .await?;
    assert_eq!(session.text(health).await?, "ok|1 names");
    session
        .run("SELECT idem_try_claim('orders', '0192F3A4-0000-7abc-8def-0123456789ab')")
        .await?;
    let reported = session.text(health).await?;
    assert!(
        reported.starts_with(
            "warning|2 names, and 1 of them are UUIDs, such as 0192F3A4-0000-7abc-8def-0123456789ab"
        ),
        "{reported}"
    );
    Ok(())
}
