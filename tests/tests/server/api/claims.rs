//! I1 without concurrency: one id, one claim, and what a claimer is told about it.

use anyhow::Result;
use idem_tests::harness::{Database, until};

#[tokio::test]
async fn i1_a_claim_is_true_exactly_once() -> Result<()> {
    let db = Database::with_idem("once").await?;
    let session = db.connect().await?;
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m1', 'orders')")
            .await?,
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
            .text("SELECT idem_try_claim('m1', 'billing')")
            .await?,
        "t",
        "another destination"
    );
    assert_eq!(
        session
            .text("SELECT ring, destination, id, claimed_at <= now() FROM idem.inbox ORDER BY destination")
            .await?,
        "standard|billing|m1|t\nstandard|orders|m1|t"
    );
    Ok(())
}

#[tokio::test]
async fn i1_a_uuid_and_the_text_that_spells_it_are_one_id() -> Result<()> {
    let db = Database::with_idem("spellings").await?;
    let session = db.connect().await?;
    let id = "0192f3a4-0000-7abc-8def-0123456789ab";
    assert_eq!(
        session
            .text(&format!("SELECT idem_try_claim('{id}'::uuid, 'orders')"))
            .await?,
        "t"
    );
    for spelling in [
        format!("'{id}'::text"),
        format!("upper('{id}')"),
        format!("'{id}'::uuid"),
    ] {
        assert_eq!(
            session
                .text(&format!("SELECT idem_try_claim({spelling}, 'orders')"))
                .await?,
            "f",
            "{spelling}"
        );
        assert_eq!(
            session
                .text(&format!("SELECT idem_is_claimed({spelling}, 'orders')"))
                .await?,
            "t",
            "{spelling}"
        );
    }
    let other = format!("SELECT idem_try_claim('{}', 'orders')", id.replace('-', ""));
    assert_eq!(
        session.text(&other).await?,
        "t",
        "without hyphens it is a text like any other"
    );
    Ok(())
}

#[tokio::test]
async fn i1_ids_are_compared_byte_by_byte() -> Result<()> {
    let db = Database::with_idem("bytes").await?;
    let session = db.connect().await?;
    let longest = "x".repeat(1024);
    for id in [
        "m",
        "M",
        "m ",
        " m",
        "m\\x00",
        "é",
        "e\u{301}",
        &longest,
        &format!("{}y", &longest[1..]),
    ] {
        let row = session
            .query_one(
                "SELECT idem_try_claim($1::text, 'orders'), idem_try_claim($1::text, 'orders')",
                &[&id],
            )
            .await?;
        assert_eq!((row.get(0), row.get(1)), (true, false), "{id:?}");
    }
    Ok(())
}

#[tokio::test]
async fn i1_a_batch_answers_by_position_and_the_second_of_two_equal_ids_is_a_duplicate()
-> Result<()> {
    let db = Database::with_idem("batch").await?;
    let session = db.connect().await?;
    session.text("SELECT idem_try_claim('b', 'orders')").await?;
    assert_eq!(
        session
            .text("SELECT idem_try_claim_batch(ARRAY['z', 'b', 'a', 'z', 'a', 'c'], 'orders')")
            .await?,
        "{t,f,t,f,f,t}"
    );
    let uuids = "ARRAY['ffffffff-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000001', \
                       'ffffffff-0000-0000-0000-000000000000']";
    assert_eq!(
        session
            .text(&format!(
                "SELECT idem_try_claim_uuid_batch({uuids}::uuid[], 'orders')"
            ))
            .await?,
        "{t,t,f}"
    );
    assert_eq!(
        session
            .text(&format!(
                "SELECT idem_try_claim_batch({uuids}::text[], 'orders')"
            ))
            .await?,
        "{f,f,f}"
    );
    assert_eq!(
        session
            .text("SELECT idem_try_claim_batch(ARRAY[]::text[], 'orders')")
            .await?,
        "{}"
    );
    assert_eq!(
        session
            .text("SELECT idem_try_claim_uuid_batch('{}'::uuid[], 'orders')")
            .await?,
        "{}"
    );

    let many = "SELECT count(*) FILTER (WHERE claimed), count(*)
                  FROM unnest(idem_try_claim_batch(ARRAY(SELECT 'many ' || n % 900 FROM generate_series(1, 1000) n), 'orders')) claimed";
    assert_eq!(session.text(many).await?, "900|1000");
    assert_eq!(session.text(many).await?, "0|1000");
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.inbox WHERE destination = 'orders'")
            .await?,
        "906"
    );
    Ok(())
}

#[tokio::test]
async fn another_fingerprint_is_a_mismatch() -> Result<()> {
    let db = Database::with_idem("fingerprint").await?;
    let session = db.connect().await?;
    let ask = async |id: &str, fingerprint: &str| {
        let sql = format!(
            "SELECT outcome, handled_at = (SELECT claimed_at FROM idem.inbox WHERE id = '{id}')
               FROM idem_claim('{id}', 'orders', fingerprint => {fingerprint})"
        );
        session.text(&sql).await
    };
    assert_eq!(
        session
            .text("SELECT outcome, handled_at BETWEEN now() AND clock_timestamp() FROM idem_claim('m1', 'orders', fingerprint => '\\x01')")
            .await?,
        "claimed|t"
    );
    assert_eq!(ask("m1", "'\\x01'").await?, "duplicate|t");
    assert_eq!(ask("m1", "'\\x02'").await?, "mismatch|t");
    assert_eq!(ask("m1", "NULL").await?, "duplicate|t");
    assert_eq!(
        session
            .text("SELECT fingerprint FROM idem.inbox WHERE id = 'm1'")
            .await?,
        "\\x01",
        "the first one stays"
    );

    session
        .text("SELECT idem_try_claim('m2', 'orders')")
        .await?;
    assert_eq!(
        ask("m2", "'\\x02'").await?,
        "duplicate|t",
        "nothing to compare with"
    );
    Ok(())
}

#[tokio::test]
async fn what_the_ring_cannot_remember_is_expired_and_not_claimed() -> Result<()> {
    let db = Database::with_idem("expired").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_set_retention('short', '200 milliseconds')")
        .await?;
    session
        .run("SELECT idem_configure('orders', '200 milliseconds')")
        .await?;
    let sent_at = session.text("SELECT now()").await?;
    assert_eq!(
        session
            .text(&format!(
                "SELECT outcome FROM idem_claim('early', 'orders', sent_at => '{sent_at}')"
            ))
            .await?,
        "claimed",
        "a ring that has forgotten nothing can tell"
    );

    until("the ring forgets that moment", async || {
        session.run("CALL idem_maintain()").await?;
        Ok(session
            .text(&format!(
                "SELECT remembers_since > '{sent_at}' FROM idem.rings WHERE ring = 'short' LIMIT 1"
            ))
            .await?
            == "t")
    })
    .await?;

    let claim = |sent_at: &str| {
        format!(
            "SELECT outcome, handled_at IS NULL FROM idem_claim('late', 'orders', sent_at => {sent_at})"
        )
    };
    assert_eq!(
        session.text(&claim(&format!("'{sent_at}'"))).await?,
        "expired|t"
    );
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('late', 'orders')")
            .await?,
        "f"
    );
    assert_eq!(session.text(&claim("'-infinity'")).await?, "expired|t");
    assert_eq!(session.text(&claim("now()")).await?, "claimed|f");
    // Claimed and asked in one transaction: retention is shorter than a slow machine's pause
    // between two.
    assert_eq!(
        session
            .text(&format!(
                "BEGIN; SELECT idem_try_claim('twice', 'orders');
                 SELECT outcome FROM idem_claim('twice', 'orders', sent_at => '{sent_at}'); COMMIT"
            ))
            .await?,
        "t\nduplicate",
        "what is remembered is a duplicate, however old"
    );
    Ok(())
}

#[tokio::test]
async fn is_claimed_sees_what_is_committed_or_mine_and_writes_nothing() -> Result<()> {
    let db = Database::with_idem("is_claimed").await?;
    let (mine, other) = (db.connect().await?, db.connect().await?);
    let ask = "SELECT idem_is_claimed('m1', 'orders')";
    assert_eq!(mine.text(ask).await?, "f");
    mine.run("BEGIN; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    assert_eq!(
        (mine.text(ask).await?, other.text(ask).await?),
        ("t".into(), "f".into())
    );
    mine.run("ROLLBACK").await?;
    assert_eq!(
        (mine.text(ask).await?, other.text(ask).await?),
        ("f".into(), "f".into())
    );
    mine.run("SELECT idem_try_claim('m1', 'orders')").await?;
    other.run("BEGIN READ ONLY").await?;
    assert_eq!(
        (mine.text(ask).await?, other.text(ask).await?),
        ("t".into(), "t".into())
    );
    assert_eq!(
        other
            .text(
                "SELECT idem_is_claimed('m1', 'nowhere'), pg_current_xact_id_if_assigned() IS NULL"
            )
            .await?,
        "f|t"
    );
    Ok(())
}

#[tokio::test]
async fn a_forgotten_claim_is_free_and_its_effects_are_not_those_of_the_next_execution()
-> Result<()> {
    let db = Database::with_idem("forget").await?;
    let session = db.connect().await?;
    let effects = "SELECT ordinal, convert_from(payload, 'UTF8') FROM idem_effects('m1', 'orders')";
    assert_eq!(
        session.text("SELECT idem_forget('m1', 'orders')").await?,
        "f"
    );
    session
        .run(r#"SELECT idem_try_record('m1', 'orders', '[{"topic": "t", "payload": "first"}, {"topic": "t", "payload": 1}]')"#)
        .await?;
    assert_eq!(session.text(effects).await?, "0|\"first\"\n1|1");
    assert_eq!(
        session.text("SELECT idem_forget('m1', 'billing')").await?,
        "f"
    );
    assert_eq!(
        session.text("SELECT idem_forget('m1', 'orders')").await?,
        "t"
    );
    assert_eq!(
        session.text("SELECT idem_forget('m1', 'orders')").await?,
        "f"
    );
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('m1', 'orders')")
            .await?,
        "f"
    );
    assert_eq!(session.text(effects).await?, "", "no claim, no facts");
    assert_eq!(
        session
            .text(
                r#"SELECT idem_try_record('m1', 'orders', '{"topic": "t", "payload": "second"}')"#
            )
            .await?,
        "t"
    );
    assert_eq!(session.text(effects).await?, "0|\"second\"");
    assert_eq!(
        session.text("SELECT count(*) FROM idem.outbox_row").await?,
        "3",
        "what was sent was sent"
    );
    Ok(())
}

#[tokio::test]
async fn a_forgotten_claim_is_back_when_the_forgetting_rolls_back() -> Result<()> {
    let db = Database::with_idem("forget_rollback").await?;
    let session = db.connect().await?;
    session.run("SELECT idem_try_claim('m1', 'orders')").await?;
    session.run("BEGIN").await?;
    assert_eq!(
        session
            .text("SELECT idem_forget('m1', 'orders'); SELECT idem_try_claim('m1', 'orders')")
            .await?,
        "t\nt"
    );
    session.run("ROLLBACK").await?;
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m1', 'orders')")
            .await?,
        "f"
    );
    Ok(())
}

/// A uuid can be made to have the key of a text: it is another message, and nothing may be said
/// about it.
#[tokio::test]
async fn a_key_that_belongs_to_another_id_is_an_error_and_never_a_duplicate() -> Result<()> {
    let db = Database::with_idem("collision").await?;
    let session = db.connect().await?;
    let twin = session
        .text("SELECT encode(substring(sha256('m1') FROM 1 FOR 16), 'hex')::uuid")
        .await?;
    session
        .run(r#"SELECT idem_try_record('m1', 'orders', '{"topic": "t", "payload": 1}')"#)
        .await?;
    for (call, taken_by) in [
        (
            format!("idem_try_claim('{twin}'::uuid, 'orders')"),
            "\"m1\"",
        ),
        (
            format!("idem_try_claim('{twin}'::text, 'orders')"),
            "\"m1\"",
        ),
        (
            format!("idem_try_claim_uuid_batch(ARRAY['{twin}']::uuid[], 'orders')"),
            "\"m1\"",
        ),
        (format!("idem_claim('{twin}'::uuid, 'orders')"), "\"m1\""),
        (
            format!("idem_is_claimed('{twin}'::uuid, 'orders')"),
            "\"m1\"",
        ),
        (format!("idem_effects('{twin}'::uuid, 'orders')"), "\"m1\""),
        (
            format!("idem_replay_effects('{twin}'::uuid, 'orders')"),
            "\"m1\"",
        ),
        (format!("idem_forget('{twin}'::uuid, 'orders')"), "\"m1\""),
    ] {
        let refusal = session.refused(&format!("SELECT {call}")).await?;
        assert_eq!(refusal.sqlstate, "23000", "{call}: {refusal:?}");
        assert!(refusal.hint.contains(taken_by), "{call}: {refusal:?}");
    }
    session
        .run("BEGIN; SELECT idem_try_claim('m1', 'shipping')")
        .await?;
    let record = format!(
        r#"SELECT idem_record_effects('{twin}'::uuid, 'shipping', '{{"topic": "t", "payload": 1}}')"#
    );
    assert_eq!(session.refused(&record).await?.sqlstate, "23000");
    session.run("ROLLBACK").await?;
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('m1', 'orders')")
            .await?,
        "t",
        "the first is untouched"
    );

    session
        .run(&format!("SELECT idem_try_claim('{twin}'::uuid, 'billing')"))
        .await?;
    let refusal = session
        .refused("SELECT idem_try_claim('m1', 'billing')")
        .await?;
    assert_eq!(refusal.sqlstate, "23000");
    assert!(refusal.hint.contains("uuid"), "{refusal:?}");
    Ok(())
}

#[tokio::test]
async fn a_claimer_that_gives_up_waiting_leaves_nothing_behind() -> Result<()> {
    let db = Database::with_idem("gives_up").await?;
    let (first, second, other) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    // Who creates a destination holds up everybody else's first claim of it: not what is shown
    // here.
    first
        .run("SELECT idem_configure('orders', '1 day')")
        .await?;
    first
        .run("BEGIN; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    let pid = second.pid().await?;

    second
        .run("BEGIN; SELECT idem_try_claim('m2', 'orders'); SAVEPOINT s; SET LOCAL lock_timeout = '10ms'")
        .await?;
    for claim in [
        "idem_try_claim('m1', 'orders')",
        "idem_try_claim_batch(ARRAY['m3', 'm1'], 'orders')",
    ] {
        assert_eq!(
            second.refused(&format!("SELECT {claim}")).await?.sqlstate,
            "55P03",
            "{claim}"
        );
        second
            .run("ROLLBACK TO SAVEPOINT s; SET LOCAL lock_timeout = '10ms'")
            .await?;
    }
    second.run("SET LOCAL lock_timeout = 0").await?;
    let (refusal, cancelled) = tokio::join!(
        second.refused("SELECT idem_try_claim('m1', 'orders')"),
        async {
            db.until_blocked(pid).await?;
            other
                .text(&format!("SELECT pg_cancel_backend({pid})"))
                .await
        }
    );
    assert_eq!(
        (refusal?.sqlstate.as_str(), cancelled?.as_str()),
        ("57014", "t")
    );
    second
        .run("ROLLBACK TO SAVEPOINT s; SELECT idem_try_claim('m4', 'orders'); COMMIT")
        .await?;

    first.run("ROLLBACK").await?;
    assert_eq!(
        other
            .text("SELECT string_agg(id, ' ' ORDER BY id) FROM idem.inbox")
            .await?,
        "m2 m4",
        "what was claimed beside the wait stays, what was claimed before it in the same call does not"
    );
    let warnings: Vec<_> = second
        .notices()
        .into_iter()
        .filter(|notice| notice.severity == "WARNING")
        .collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(
        second.text("SELECT idem_try_claim('m1', 'orders')").await?,
        "t"
    );
    Ok(())
}
