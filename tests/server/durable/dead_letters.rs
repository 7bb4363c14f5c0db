//! Tests of dead letters: a message that has used up its attempts is kept with every error, is
//! redelivered when it is requeued, and is dropped only by an operator.

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session};

use super::{claim, fail, ids, next, receive, without_back_off};

async fn letters(session: &Session) -> Result<String> {
    session
        .text("SELECT id FROM idem.dead_letters ORDER BY seq")
        .await
}

/// Receives messages and makes each of them a dead letter with one failure.
async fn died(session: &Session, ids: &[&str], error: &str) -> Result<()> {
    without_back_off(session, 1).await?;
    for id in ids {
        receive(
            session,
            id,
            ", key => 'k', headers => '{\"n\": 1}'::jsonb, type => 'T'",
        )
        .await?;
        let held = next(session, 1).await?.remove(0);
        assert_eq!(held.id, *id);
        assert_eq!(fail(session, &held, error).await?, "NULL");
    }
    Ok(())
}

#[tokio::test]
async fn message_is_dead_after_its_attempts_with_every_error() -> Result<()> {
    let db = Database::with_idem("dies").await?;
    let session = db.connect().await?;
    without_back_off(&session, 3).await?;
    receive(
        &session,
        "a",
        ", headers => '{\"traceparent\": \"00-1\", \"n\": 1}'::jsonb, key => 'k', type => 'T'",
    )
    .await?;
    for attempt in 1..=3 {
        assert_eq!(letters(&session).await?, "");
        let held = next(&session, 1).await?.remove(0);
        assert_eq!(held.attempt, attempt);
        if attempt > 1 {
            assert_eq!(held.last_error, format!("boom {}", attempt - 1));
        }
        let backoff = fail(&session, &held, &format!("boom {attempt}")).await?;
        assert_eq!(backoff, if attempt < 3 { "00:00:00" } else { "NULL" });
    }
    assert_eq!(ids(&next(&session, 1).await?), [""; 0]);
    let letter = session
        .text(
            "SELECT destination, id, attempt, key, type, convert_from(payload, 'UTF8'), \
             content_type, headers, traceparent, last_error, \
             jsonb_path_query_array(errors, '$[*].error'), \
             (SELECT bool_and((e ->> 'at')::timestamptz BETWEEN received_at \
             AND clock_timestamp()) FROM jsonb_array_elements(errors) e) \
             FROM idem.dead_letters",
        )
        .await?;
    assert_eq!(
        letter,
        "mail|a|3|k|T|\"a\"|application/json|{\"n\": 1, \"traceparent\": \"00-1\"}|00-1|boom 3|\
         [\"boom 1\", \"boom 2\", \"boom 3\"]|t"
    );
    assert!(!receive(&session, "a", "").await?, "the message is known");
    assert_eq!(
        session
            .text("SELECT outcome FROM idem_acquire('a', 'mail')")
            .await?,
        "dead"
    );
    let health = session
        .text("SELECT status, detail FROM idem_health() WHERE check_name = 'dead letters'")
        .await?;
    ensure!(
        health.starts_with("warning|1, of destination mail") && health.contains("idem_requeue"),
        "{health}"
    );
    Ok(())
}

#[tokio::test]
async fn final_error_makes_a_dead_letter_at_once() -> Result<()> {
    let db = Database::with_idem("final").await?;
    let session = db.connect().await?;
    session
        .run(
            r"SELECT idem_configure_retries('mail', base => '0',
                                            final_errors => '{no such %,100\\% broken}')",
        )
        .await?;
    for (id, error, is_final) in [
        ("a", "no such customer", true),
        ("b", "100% broken", true),
        ("c", "100 broken", false),
    ] {
        receive(&session, id, "").await?;
        let held = next(&session, 1).await?.remove(0);
        assert_eq!(held.id, id);
        assert_eq!(
            fail(&session, &held, error).await? == "NULL",
            is_final,
            "{error}"
        );
    }
    let held = next(&session, 1).await?.remove(0);
    let release = format!(
        "SELECT idem_release('c', 'mail', {}, 'I say so', true)",
        held.token
    );
    assert_eq!(session.text(&release).await?, "NULL");
    assert_eq!(letters(&session).await?, "a\nb\nc");
    Ok(())
}

#[tokio::test]
async fn dead_letter_does_not_delay_its_key() -> Result<()> {
    let db = Database::with_idem("behind").await?;
    let session = db.connect().await?;
    died(&session, &["a"], "boom").await?;
    receive(&session, "b", ", key => 'k'").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["b"]);
    Ok(())
}

/// A requeued message is redelivered once, with all its attempts, its payload, its headers and its
/// properties.
#[tokio::test]
async fn requeued_message_is_redelivered_once_with_its_data() -> Result<()> {
    let db = Database::with_idem("requeue").await?;
    let session = db.connect().await?;
    died(&session, &["a", "b"], "boom").await?;
    receive(&session, "waits", ", key => 'k'").await?;
    assert_eq!(
        session
            .text("SELECT idem_requeue('a', 'mail'), idem_requeue('a', 'mail')")
            .await?,
        "t|f"
    );
    assert_eq!(letters(&session).await?, "b");
    let handed = next(&session, 10).await?;
    assert_eq!(
        ids(&handed),
        ["waits"],
        "the requeued message is the last of its key"
    );
    assert!(claim(&session, "waits").await?);
    let row = "SELECT id, attempt, key, type, headers, last_error FROM idem_next('mail', 10)";
    assert_eq!(session.text(row).await?, "a|1|k|T|{\"n\": 1}|NULL");
    assert!(claim(&session, "a").await?);
    assert_eq!(
        session.text(row).await?,
        "",
        "the message is redelivered once"
    );
    Ok(())
}

#[tokio::test]
async fn message_handled_meanwhile_is_not_redelivered() -> Result<()> {
    let db = Database::with_idem("meanwhile").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    died(&session, &["a", "b", "c"], "boom").await?;
    assert!(
        claim(&session, "a").await?,
        "an operator handles the message"
    );
    let refusal = session.refused("SELECT idem_requeue('a', 'mail')").await?;
    assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    assert_eq!(letters(&session).await?, "a\nb\nc");

    // The claim waits for the transaction that requeues the message, and then deletes the pending
    // message.
    session
        .run("BEGIN; SELECT idem_requeue('b', 'mail')")
        .await?;
    let pid = other.pid().await?;
    let claims = tokio::spawn(async move { claim(&other, "b").await });
    db.until_blocked(pid).await?;
    session.run("COMMIT").await?;
    assert!(claims.await??);
    assert_eq!(
        ids(&next(&session, 10).await?),
        [""; 0],
        "the message is handled"
    );

    // In the opposite order, the session that requeues waits for the claim.
    let other = db.connect().await?;
    other
        .run("BEGIN; SELECT idem_try_claim('c', 'mail')")
        .await?;
    let pid = session.pid().await?;
    let requeues = tokio::spawn(async move {
        let refusal = session.refused("SELECT idem_requeue('c', 'mail')").await;
        (session, refusal)
    });
    db.until_blocked(pid).await?;
    other.run("COMMIT").await?;
    let (session, refusal) = requeues.await?;
    assert_eq!(refusal?.sqlstate, "55000");
    assert_eq!(
        ids(&next(&session, 10).await?),
        [""; 0],
        "the message is handled"
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0"
    );
    Ok(())
}

#[tokio::test]
async fn requeue_all_applies_error_filter_order_and_limit() -> Result<()> {
    let db = Database::with_idem("filter").await?;
    let session = db.connect().await?;
    died(&session, &["a", "b", "c"], "gateway away").await?;
    died(&session, &["x"], "no such customer").await?;
    assert!(claim(&session, "b").await?);
    assert_eq!(
        session
            .text("SELECT idem_requeue_all('mail', 'gateway%', 1)")
            .await?,
        "1"
    );
    let notice = session.notices().remove(0);
    assert_eq!(
        notice.message, "skips 1 dead letters of processed messages",
        "b is handled already"
    );
    assert_eq!(
        session
            .text("SELECT idem_requeue_all('mail', 'gateway%')")
            .await?,
        "1"
    );
    assert_eq!(
        session
            .text("SELECT idem_requeue_all('mail', 'gateway%')")
            .await?,
        "0"
    );
    assert_eq!(letters(&session).await?, "b\nx");
    for id in ["a", "c"] {
        assert_eq!(ids(&next(&session, 10).await?), [id]);
        assert!(claim(&session, id).await?);
    }
    Ok(())
}

#[tokio::test]
async fn discarded_message_stays_known() -> Result<()> {
    let db = Database::with_idem("discard").await?;
    let session = db.connect().await?;
    died(&session, &["a", "b", "c"], "boom").await?;
    assert_eq!(
        session
            .text("SELECT idem_discard('a', 'mail'), idem_discard('a', 'mail')")
            .await?,
        "t|f"
    );
    assert_eq!(
        session
            .text("SELECT idem_discard_all('mail', '%boom%')")
            .await?,
        "2"
    );
    assert_eq!(letters(&session).await?, "");
    for id in ["a", "b", "c"] {
        assert!(!claim(&session, id).await?, "{id} is known");
        assert!(!receive(&session, id, "").await?);
    }
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0"
    );
    Ok(())
}

/// A broker holds the message, and the consumer counts the attempts with leases. After the last
/// attempt a lease is `exhausted`, and the consumer buries the message.
#[tokio::test]
async fn broker_message_is_exhausted_after_its_attempts() -> Result<()> {
    let db = Database::with_idem("broker").await?;
    let session = db.connect().await?;
    without_back_off(&session, 2).await?;
    let acquire =
        "SELECT outcome, token, attempt, coalesce(last_error, '-') FROM idem_acquire('m', 'mail')";
    for (attempt, error) in [(1, "-"), (2, "boom")] {
        let result = session.text(acquire).await?;
        let token = result.split('|').nth(1).unwrap_or_default().to_owned();
        assert_eq!(result, format!("acquired|{token}|{attempt}|{error}"));
        let backoff = session
            .text(&format!(
                "SELECT idem_release('m', 'mail', {token}, 'boom')"
            ))
            .await?;
        assert_eq!(backoff, if attempt == 1 { "00:00:00" } else { "NULL" });
    }
    let result = session.text(acquire).await?;
    let token = result.split('|').nth(1).unwrap_or_default().to_owned();
    assert_eq!(result, format!("exhausted|{token}|2|boom"));
    session
        .run(&format!(
            "SELECT idem_bury('m', 'mail', {token}, '\"m\"', 'gave up', \
             headers => '{{\"h\": 1}}', key => 'k')"
        ))
        .await?;
    assert_eq!(
        session
            .text(
                "SELECT id, attempt, key, headers, last_error, jsonb_array_length(errors) \
                 FROM idem.dead_letters"
            )
            .await?,
        "m|2|k|{\"h\": 1}|gave up|3"
    );
    assert_eq!(
        session
            .text("SELECT outcome FROM idem_acquire('m', 'mail')")
            .await?,
        "dead"
    );
    assert_eq!(session.text("SELECT idem_requeue('m', 'mail')").await?, "t");
    assert_eq!(
        ids(&next(&session, 1).await?),
        ["m"],
        "the requeued message is in the inbox"
    );
    Ok(())
}

/// I4: a message that is requeued while its discard waits stays pending, and the discard returns
/// false.
#[tokio::test]
async fn i4_discard_during_a_requeue_discards_nothing() -> Result<()> {
    let db = Database::with_idem("discard_requeue").await?;
    let (session, discards) = (db.connect().await?, db.connect().await?);
    without_back_off(&session, 1).await?;
    receive(&session, "m", "").await?;
    let held = next(&session, 1).await?.remove(0);
    fail(&session, &held, "broken").await?;

    session
        .run("BEGIN; SELECT idem_requeue('m', 'mail')")
        .await?;
    let pid = discards.pid().await?;
    let discard =
        tokio::spawn(async move { discards.text("SELECT idem_discard('m', 'mail')").await });
    db.until_blocked(pid).await?;
    session.run("COMMIT").await?;
    assert_eq!(discard.await??, "f");
    assert_eq!(
        ids(&next(&session, 1).await?),
        ["m"],
        "the requeued message is ready"
    );
    Ok(())
}
