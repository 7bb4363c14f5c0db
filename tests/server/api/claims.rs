//! I1 without concurrency: an id has one claim, and the functions return the state of that claim.

use anyhow::Result;
use idem_testkit::{Database, until};

/// I1: `idem_try_claim` returns true once for each id and destination.
#[tokio::test]
async fn i1_try_claim_returns_true_once() -> Result<()> {
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
        "another destination has its own claim"
    );
    assert_eq!(
        session
            .text(
                "SELECT ring, destination, id, claimed_at <= now() FROM idem.inbox
                  ORDER BY destination"
            )
            .await?,
        "standard|billing|m1|t\nstandard|orders|m1|t"
    );
    Ok(())
}

/// I1: a UUID and its text with hyphens, in lower or upper case, are one id.
#[tokio::test]
async fn i1_uuid_and_its_text_are_one_id() -> Result<()> {
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
        "a text without hyphens is not a UUID"
    );
    Ok(())
}

/// I1: two text ids are the same only when all their bytes are the same.
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

/// I1: a batch returns its results by position. Of two equal ids in a batch the second is a
/// duplicate.
#[tokio::test]
async fn i1_batch_returns_duplicates_by_position() -> Result<()> {
    let db = Database::with_idem("batch").await?;
    let session = db.connect().await?;
    session.text("SELECT idem_try_claim('b', 'orders')").await?;
    assert_eq!(
        session
            .text("SELECT idem_try_claim_batch(ARRAY['z', 'b', 'a', 'z', 'a', 'c'], 'orders')")
            .await?,
        "{t,f,t,f,f,t}"
    );
    let uuids = "ARRAY['ffffffff-0000-0000-0000-000000000000', \
                       '00000000-0000-0000-0000-000000000001', \
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
                  FROM unnest(idem_try_claim_batch(ARRAY(SELECT 'many ' || n % 900
                      FROM generate_series(1, 1000) n), 'orders')) claimed";
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

/// A claim with another fingerprint than the first claim returns `mismatch`.
#[tokio::test]
async fn other_fingerprint_is_a_mismatch() -> Result<()> {
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
            .text(
                "SELECT outcome, handled_at BETWEEN now() AND clock_timestamp()
                   FROM idem_claim('m1', 'orders', fingerprint => '\\x01')"
            )
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
        "the first fingerprint is kept"
    );

    session
        .text("SELECT idem_try_claim('m2', 'orders')")
        .await?;
    assert_eq!(
        ask("m2", "'\\x02'").await?,
        "duplicate|t",
        "the claim has no fingerprint to compare with"
    );
    Ok(())
}

/// A message that was sent before `remembers_since` of its ring is `expired` and is not claimed.
#[tokio::test]
async fn message_older_than_the_ring_is_expired_and_not_claimed() -> Result<()> {
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
        "a ring that has removed nothing remembers that time"
    );

    until("the ring no longer remembers that time", async || {
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
            "SELECT outcome, handled_at IS NULL FROM idem_claim('late', 'orders',
                 sent_at => {sent_at})"
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
    // Both claims are in one transaction. The retention is only 200 ms, so on a slow machine the
    // first claim could be forgotten before a second transaction begins.
    assert_eq!(
        session
            .text(&format!(
                "BEGIN; SELECT idem_try_claim('twice', 'orders');
                 SELECT outcome FROM idem_claim('twice', 'orders', sent_at => '{sent_at}'); COMMIT"
            ))
            .await?,
        "t\nduplicate",
        "a claimed message is a duplicate, whatever its age"
    );
    Ok(())
}

/// `idem_is_claimed` sees committed claims and claims of its own transaction, and writes nothing.
#[tokio::test]
async fn is_claimed_sees_committed_and_own_claims() -> Result<()> {
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

/// A forgotten message can be claimed again, and the next execution does not have the effects of
/// the first execution.
#[tokio::test]
async fn forgotten_message_is_claimed_again_without_old_effects() -> Result<()> {
    let db = Database::with_idem("forget").await?;
    let session = db.connect().await?;
    let effects = "SELECT ordinal, convert_from(payload, 'UTF8') FROM idem_effects('m1', 'orders')";
    assert_eq!(
        session.text("SELECT idem_forget('m1', 'orders')").await?,
        "f"
    );
    session
        .run(
            r#"SELECT idem_try_record('m1', 'orders',
                   '[{"topic": "t", "payload": "first"}, {"topic": "t", "payload": 1}]')"#,
        )
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
    assert_eq!(
        session.text(effects).await?,
        "",
        "without a claim there are no effects"
    );
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
        "effects that were recorded stay in the outbox"
    );
    Ok(())
}

/// A rollback of `idem_forget` restores the claim.
#[tokio::test]
async fn rolled_back_forget_keeps_the_claim() -> Result<()> {
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

/// The key of a text id can be equal to a UUID, although the two ids are different messages. For
/// the second of these ids each function fails with 23000, because it finds the row of the first
/// id.
#[tokio::test]
async fn key_of_another_id_is_an_error_and_not_a_duplicate() -> Result<()> {
    let db = Database::with_idem("collision").await?;
    let session = db.connect().await?;
    let twin = session
        .text("SELECT encode(substring(sha256('m1') FROM 1 FOR 16), 'hex')::uuid")
        .await?;
    session
        .run(r#"SELECT idem_try_record('m1', 'orders', '{"topic": "t", "payload": 1}')"#)
        .await?;
    for (call, owner) in [
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
        assert!(refusal.hint.contains(owner), "{call}: {refusal:?}");
    }
    session
        .run("BEGIN; SELECT idem_try_claim('m1', 'shipping')")
        .await?;
    let record = format!(
        r#"SELECT idem_record_effects('{twin}'::uuid, 'shipping',
               '{{"topic": "t", "payload": 1}}')"#
    );
    assert_eq!(session.refused(&record).await?.sqlstate, "23000");
    session.run("ROLLBACK").await?;
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('m1', 'orders')")
            .await?,
        "t",
        "the claim of the first id is unchanged"
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

/// A statement that stops waiting, by `lock_timeout` or a cancel, leaves no claim behind.
#[tokio::test]
async fn claimer_that_stops_waiting_leaves_no_claim() -> Result<()> {
    let db = Database::with_idem("gives_up").await?;
    let (first, second, other) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    first
        .run("BEGIN; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    let pid = second.pid().await?;

    second
        .run(
            "BEGIN; SELECT idem_try_claim('m2', 'orders'); SAVEPOINT s;
             SET LOCAL lock_timeout = '10ms'",
        )
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
        "claims of other statements are kept, claims of the statement that stopped waiting are not"
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
