//! Tests of dead letters whose message was processed: a claim, whichever way, ends the life of the
//! dead letter, which only a person can then remove.

use anyhow::Result;
use idem_testkit::{Database, Session, ring};

use super::{claim, fail, ids, next, receive, without_back_off};

/// Receives messages and makes each of them a dead letter with one failure.
async fn died(session: &Session, ids: &[&str]) -> Result<()> {
    without_back_off(session, 1).await?;
    for id in ids {
        assert!(receive(session, id, "").await?);
        let held = next(session, 1).await?.remove(0);
        assert_eq!(held.id, *id);
        fail(session, &held, "boom").await?;
    }
    Ok(())
}

/// Lets the retention of all claims pass.
async fn forget_claims(session: &Session) -> Result<()> {
    for _ in 0..=ring::SEALED {
        ring::rotate_once(session, "standard").await?;
    }
    Ok(())
}

/// I1: a message that was claimed after it became a dead letter is not processed again, also when
/// the claim is forgotten. The dead letter stays until a person discards it.
#[tokio::test]
async fn i1_dead_letter_of_a_processed_message_is_not_requeued() -> Result<()> {
    let db = Database::with_idem("processed").await?;
    let session = db.connect().await?;
    let ways = [
        "SELECT idem_try_claim('m', 'mail')",
        "SELECT outcome = 'claimed' FROM idem_claim('m', 'mail', false)",
        "SELECT outcome = 'claimed' FROM idem_claim_in_block('m', 'mail')",
        "SELECT idem_try_claim_batch(ARRAY['m'], 'mail') = ARRAY[true]",
        "SELECT idem_try_record('m', 'mail', '[]')",
    ];
    for claims in ways {
        died(&session, &["m"]).await?;
        session.run(&format!("BEGIN; {claims}; COMMIT")).await?;
        for is_retained in [true, false] {
            if !is_retained {
                forget_claims(&session).await?;
            }
            assert_eq!(
                session.text("SELECT idem_is_claimed('m', 'mail')").await? == "t",
                is_retained
            );
            for all in ["idem_requeue_all('mail')", "idem_forward_all('mail', 't')"] {
                let moved = session.text(&format!("SELECT {all}")).await?;
                assert_eq!(moved, "0", "{claims}: {all}");
            }
            for one in [
                "idem_requeue('m', 'mail')",
                "idem_forward('m', 'mail', 't')",
            ] {
                let failed = session.refused(&format!("SELECT {one}")).await?;
                assert_eq!(failed.sqlstate, "55000", "{claims}: {one}: {failed:?}");
                assert!(failed.hint.contains("idem_discard"), "{failed:?}");
            }
        }
        assert_eq!(ids(&next(&session, 1).await?), [""; 0], "{claims}");
        assert_eq!(
            session
                .text("SELECT id, processed FROM idem.dead_letters")
                .await?,
            "m|t"
        );
        assert_eq!(session.text("SELECT idem_discard('m', 'mail')").await?, "t");
        assert_eq!(session.text("SELECT idem_discard_all('mail')").await?, "0");
        assert_eq!(session.text("SELECT count(*) FROM idem.outbox").await?, "0");
    }
    Ok(())
}

/// I4: a message that is received again after its claim was forgotten is a new message. The old
/// dead letter does not stop it, discarding the old one does not drop it, and a new dead letter can
/// be requeued.
#[tokio::test]
async fn i4_message_received_after_its_claim_is_kept() -> Result<()> {
    let db = Database::with_idem("received_again").await?;
    let session = db.connect().await?;
    for discard in [
        "idem_discard('m', 'mail')",
        "idem_discard_all('mail')::bool",
    ] {
        died(&session, &["m"]).await?;
        assert!(claim(&session, "m").await?);
        assert_eq!(session.text("SELECT idem_forget('m', 'mail')").await?, "t");
        assert!(receive(&session, "m", "").await?);
        assert_eq!(
            session
                .text("SELECT id, processed FROM idem.dead_letters")
                .await?,
            "m|t"
        );
        assert_eq!(session.text(&format!("SELECT {discard}")).await?, "t");
        let held = next(&session, 1).await?.remove(0);
        assert_eq!(held.id, "m", "{discard}");
        fail(&session, &held, "again").await?;
        assert_eq!(
            session
                .text("SELECT processed, last_error FROM idem.dead_letters")
                .await?,
            "f|again"
        );
        assert_eq!(session.text("SELECT idem_requeue('m', 'mail')").await?, "t");
        assert_eq!(ids(&next(&session, 1).await?), ["m"]);
        assert!(claim(&session, "m").await?);
        assert_eq!(session.text("SELECT idem_forget('m', 'mail')").await?, "t");
    }
    Ok(())
}

/// I4: processed dead letters at the head do not keep the others from being requeued, and are
/// discarded in bulk.
#[tokio::test]
async fn i4_processed_dead_letters_hide_no_other_ones() -> Result<()> {
    let db = Database::with_idem("hidden").await?;
    let session = db.connect().await?;
    died(&session, &["a", "b", "c", "d"]).await?;
    for id in ["a", "b"] {
        assert!(claim(&session, id).await?);
    }
    for _ in 0..2 {
        assert_eq!(
            session
                .text("SELECT idem_requeue_all('mail', '%', 1)")
                .await?,
            "1"
        );
    }
    assert_eq!(ids(&next(&session, 10).await?), ["c", "d"]);
    assert_eq!(
        session
            .text("SELECT id FROM idem.dead_letters WHERE processed ORDER BY seq")
            .await?,
        "a\nb"
    );
    assert_eq!(session.text("SELECT idem_discard_all('mail')").await?, "2");
    Ok(())
}

/// I4: bulk functions use no subtransaction for a letter. More than 64 in one transaction overflow
/// a cache of the server, and every snapshot is then slower.
#[tokio::test]
async fn i4_bulk_functions_use_no_subtransactions() -> Result<()> {
    let db = Database::with_idem("subtransactions").await?;
    let session = db.connect().await?;
    for (function, written) in [
        ("idem_requeue_all('mail')", "idem.pending_0"),
        ("idem_discard_all('mail')", "idem.inbox_standard_0"),
        ("idem_forward_all('mail', 't')", "idem.outbox_0"),
    ] {
        session
            .run(
                "SELECT count(idem_reject(i::text, 'mail', 'x', 'boom'))
                   FROM generate_series(1, 70) i",
            )
            .await?;
        session.run("BEGIN").await?;
        assert_eq!(session.text(&format!("SELECT {function}")).await?, "70");
        let writers =
            format!("SELECT count(*) FROM {written} WHERE xmin = pg_current_xact_id()::xid");
        assert_eq!(session.text(&writers).await?, "70", "{function}");
        session.run("ROLLBACK").await?;
        session
            .run("SELECT idem_discard_all('mail'); DELETE FROM idem.dead_letter")
            .await?;
        session
            .run("SELECT idem_forget(i::text, 'mail') FROM generate_series(1, 70) i")
            .await?;
    }
    Ok(())
}

/// I1: a text whose hash is the id of another message does not requeue, discard, forward, release
/// or extend that message.
#[tokio::test]
async fn i1_hash_of_another_id_does_not_touch_its_message() -> Result<()> {
    let db = Database::with_idem("same_key").await?;
    let session = db.connect().await?;
    for stored in ["uuid", "m"] {
        let hash = session.text("SELECT idem.key_of('m')").await?;
        let (id, other) = if stored == "m" {
            ("m", hash.as_str())
        } else {
            (hash.as_str(), "m")
        };
        let acquire = format!("SELECT token FROM idem_acquire('{id}', '{stored}')");
        let token = session.text(&acquire).await?;
        let refused = async |call: String| -> Result<()> {
            let refusal = session.refused(&format!("SELECT {call}")).await?;
            assert_eq!(refusal.sqlstate, "23000", "{call}: {refusal:?}");
            assert!(refusal.hint.contains("another id"), "{call}: {refusal:?}");
            Ok(())
        };
        refused(format!("idem_extend('{other}', '{stored}', {token})")).await?;
        refused(format!("idem_release('{other}', '{stored}', {token})")).await?;
        refused(format!(
            "idem_bury('{other}', '{stored}', {token}, 'x', 'boom')"
        ))
        .await?;
        session
            .run(&format!(
                "SELECT idem_bury('{id}', '{stored}', {token}, 'x', 'boom')"
            ))
            .await?;
        for function in ["requeue", "discard"] {
            refused(format!("idem_{function}('{other}', '{stored}')")).await?;
        }
        refused(format!("idem_forward('{other}', '{stored}', 't')")).await?;
        refused(format!("idem_reject('{other}', '{stored}', 'x', 'boom')")).await?;
        let requeued = format!("SELECT idem_requeue('{id}', '{stored}')");
        assert_eq!(session.text(&requeued).await?, "t");
    }
    Ok(())
}
