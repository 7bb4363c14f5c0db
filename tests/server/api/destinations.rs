//! I6 during changes by an operator: destinations move between rings, and every claim is still
//! found.

use anyhow::Result;
use idem_testkit::Database;

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
                .run("SELECT idem_configure('orders', '1 minute'), idem_set_retention('short', '1 hour')")
                .await?;
        }
    }
    Ok(())
}

/// I1: no session uses the number of a destination that a rolled back transaction created.
#[tokio::test]
async fn i1_rolled_back_destination_is_in_no_cache() -> Result<()> {
    let db = Database::with_idem("rolled_back").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    session
        .run(
            "BEGIN; SELECT idem_try_claim('m1', 'orders'), idem_try_claim('m2', 'orders');
             ROLLBACK",
        )
        .await?;
    session
        .run(
            "BEGIN; SAVEPOINT s; SELECT idem_try_claim('m1', 'orders'); ROLLBACK TO SAVEPOINT s;
             SELECT 1; COMMIT",
        )
        .await?;
    assert_eq!(
        other.text("SELECT count(*) FROM idem.destination").await?,
        "0"
    );
    assert_eq!(
        other.text("SELECT idem_try_claim('m1', 'orders')").await?,
        "t"
    );
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m1', 'orders')")
            .await?,
        "f"
    );
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m2', 'orders')")
            .await?,
        "t"
    );
    assert_eq!(
        other.text("SELECT idem_try_claim('m2', 'orders')").await?,
        "f"
    );
    assert_eq!(
        session
            .text("SELECT destination, id FROM idem.inbox ORDER BY id")
            .await?,
        "orders|m1\norders|m2"
    );
    Ok(())
}

/// Rolled back transactions use up no destination number, in one session or in several, with
/// savepoints or without.
#[tokio::test]
async fn rolled_back_destinations_use_up_no_numbers() -> Result<()> {
    let db = Database::with_idem("numbers").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    for n in 0..300 {
        session
            .run(&format!(
                "BEGIN; SELECT idem_try_claim('m', 'one {n}'); ROLLBACK"
            ))
            .await?;
        other
            .run(&format!(
                "BEGIN; SAVEPOINT s; SELECT idem_try_claim('m', 'two {n}'); ROLLBACK TO s; COMMIT"
            ))
            .await?;
    }
    session
        .run("BEGIN; SELECT idem_try_claim('m', 'kept'); COMMIT")
        .await?;
    assert_eq!(
        session
            .text("SELECT id, name FROM idem.destination")
            .await?,
        "1|kept"
    );
    Ok(())
}

/// Sessions that create destinations concurrently, and roll some of them back, do not fail, and
/// each destination has its own number.
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
    let kept = SESSIONS * (0..NAMES).filter(|n| n % 3 != 0).count();
    assert_eq!(
        session
            .text("SELECT count(*), count(DISTINCT id), max(id) <= 600 FROM idem.destination")
            .await?,
        format!("{kept}|{kept}|t")
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
    let names = "SELECT idem.destination_count()";
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
