//! Tests of the count of attempts. An attempt is counted when its lease begins, so an attempt that
//! crashes its consumer is counted, too.

use anyhow::{Context, Result};
use idem_testkit::{Database, Session, until};

use super::fencing::acquire;

/// Leases a message. Fails if the outcome and the attempt, as `acquired|1`, are not the expected
/// ones. Returns the token.
async fn ensure_leased(
    session: &Session,
    (id, destination): (&str, &str),
    expected: &str,
) -> Result<String> {
    let acquire =
        format!("SELECT outcome, attempt, token FROM idem_acquire('{id}', '{destination}')");
    let result = session.text(&acquire).await?;
    let token = result.strip_prefix(&format!("{expected}|"));
    let token = token.with_context(|| format!("{id}: {result}, not {expected}"))?;
    Ok(token.to_owned())
}

#[tokio::test]
async fn attempt_that_kills_its_backend_is_counted() -> Result<()> {
    let db = Database::with_idem("attempts").await?;
    let observer = db.connect().await?;
    for attempt in 1..=10 {
        let victim = db.connect().await?;
        acquire(&victim, "poison", "1 ms").await?;
        victim
            .run("BEGIN; CREATE TEMPORARY TABLE t (n int)")
            .await?;
        let pid = victim.pid().await?;
        observer
            .text(&format!("SELECT pg_terminate_backend({pid})"))
            .await?;
        until("the backend has ended", async || {
            let left = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
            Ok(observer.text(&left).await? == "0")
        })
        .await?;
        let counted = observer
            .text("SELECT attempt, state FROM idem.pending_0 WHERE id = 'poison'")
            .await?;
        assert_eq!(counted, format!("{attempt}|l"));
    }
    // The attempts are used up: a lease now returns `exhausted`, and the count does not grow.
    for _ in 0..2 {
        observer.run("SELECT pg_sleep(0.01)").await?;
        let result = observer
            .text(
                "SELECT outcome, attempt, last_error, token IS NOT NULL \
                 FROM idem_acquire('poison', 'work', '1 ms')",
            )
            .await?;
        assert_eq!(result, "exhausted|10|the lease expired|t");
    }
    let errors = "SELECT jsonb_array_length(errors), errors->0->>'attempt', errors->0->>'error' \
                  FROM idem.pending_0";
    assert_eq!(observer.text(errors).await?, "11|1|the lease expired");
    Ok(())
}

/// After a final error every lease returns `exhausted`, and the newest hundred errors are kept.
#[tokio::test]
async fn final_error_exhausts_message_and_keeps_100_errors() -> Result<()> {
    let db = Database::with_idem("final").await?;
    let session = db.connect().await?;
    let token = acquire(&session, "m", "1 hour").await?;
    let released = session
        .text(&format!(
            "SELECT idem_release('m', 'work', {token}, 'refused', final => true)"
        ))
        .await?;
    assert_eq!(released, "NULL");
    for n in 1..=100 {
        let token = ensure_leased(&session, ("m", "work"), "exhausted|1").await?;
        session
            .run(&format!(
                "SELECT idem_release('m', 'work', {token}, 'again {n}', final => true)"
            ))
            .await?;
    }
    let errors = "SELECT jsonb_array_length(errors), errors->0->>'error', errors->-1->>'error' \
                  FROM idem.pending";
    assert_eq!(session.text(errors).await?, "100|again 1|again 100");
    Ok(())
}

#[tokio::test]
async fn rolled_back_lease_is_not_counted_as_attempt() -> Result<()> {
    let db = Database::with_idem("no_attempt").await?;
    let session = db.connect().await?;
    session
        .run("BEGIN; SELECT idem_acquire('m', 'work'); ROLLBACK")
        .await?;
    let result = session
        .text("SELECT outcome, attempt, last_error FROM idem_acquire('m', 'work')")
        .await?;
    assert_eq!(result, "acquired|1|NULL");
    Ok(())
}

/// A lease that is `exhausted` counts no attempt. Its release without an error gives back none, so
/// the next lease is `exhausted` too and the message gets no further attempt.
#[tokio::test]
async fn released_exhausted_lease_gives_back_no_attempt() -> Result<()> {
    let db = Database::with_idem("gives_back").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_configure_retries('work', 2, base => '0')")
        .await?;
    let ensure_leased_then_release = async |leased: &str, error: &str| {
        let token = ensure_leased(&session, ("m", "work"), leased).await?;
        let sql = format!("SELECT idem_release('m', 'work', {token}{error})");
        session.run(&sql).await
    };
    // An attempt that was not used is given back, so the next lease has the same number.
    ensure_leased_then_release("acquired|1", "").await?;
    ensure_leased_then_release("acquired|1", ", 'boom'").await?;
    ensure_leased_then_release("acquired|2", "").await?;
    ensure_leased_then_release("acquired|2", ", 'boom'").await?;
    for _ in 0..3 {
        ensure_leased_then_release("exhausted|2", "").await?;
    }
    // When the limit is raised, the next attempt is the third.
    session
        .run("SELECT idem_configure_retries('work', 3, base => '0')")
        .await?;
    ensure_leased_then_release("acquired|3", ", 'boom'").await?;
    ensure_leased_then_release("exhausted|3", "").await?;
    ensure_leased(&session, ("m", "work"), "exhausted|3").await?;
    let attempts = "SELECT attempt, jsonb_array_length(errors) FROM idem.pending";
    assert_eq!(session.text(attempts).await?, "3|3");
    Ok(())
}

/// The last attempt ended when its lease expired, or with a final error. The next lease is
/// `exhausted`, and its release gives back no attempt.
#[tokio::test]
async fn release_after_expired_or_final_attempt_gives_back_none() -> Result<()> {
    let db = Database::with_idem("expired_last").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_configure_retries('work', 1, base => '0')")
        .await?;
    acquire(&session, "m", "1 ms").await?;
    until("the lease has expired", async || {
        let expired = "SELECT due_at < clock_timestamp() FROM idem.pending WHERE id = 'm'";
        Ok(session.text(expired).await? == "t")
    })
    .await?;
    session
        .run("SELECT idem_configure_retries('other', 5, base => '0')")
        .await?;
    let token = session
        .text("SELECT token FROM idem_acquire('f', 'other')")
        .await?;
    session
        .run(&format!(
            "SELECT idem_release('f', 'other', {token}, 'no', true)"
        ))
        .await?;
    for (id, destination) in [("m", "work"), ("f", "other")] {
        for _ in 0..2 {
            let token = ensure_leased(&session, (id, destination), "exhausted|1").await?;
            session
                .run(&format!(
                    "SELECT idem_release('{id}', '{destination}', {token})"
                ))
                .await?;
        }
    }
    Ok(())
}
