//! Tests of I4: a message of a broker has a pending row without a payload, because a consumer
//! leased it with `idem_acquire`. When the message is then received, the caller acknowledges it to
//! the broker, so the payload must be stored in this row.

use anyhow::{Context, Result, ensure};
use idem_testkit::{Database, Session, until};

use super::{Handed, claim, ids, next, receive, without_back_off};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Leases a message of a broker. Returns the token.
async fn acquire(session: &Session, id: &str, lease: &str) -> Result<String> {
    let sql = format!("SELECT outcome, token FROM idem_acquire('{id}', 'mail', '{lease}')");
    let result = session.text(&sql).await?;
    let token = result
        .strip_prefix("acquired|")
        .with_context(|| result.clone())?;
    Ok(token.to_owned())
}

/// Releases a message of a broker. `more` are further arguments.
async fn release(session: &Session, id: &str, token: &str, more: &str) -> Result<String> {
    session
        .text(&format!(
            "SELECT idem_release('{id}', 'mail', {token}{more})"
        ))
        .await
}

/// Leases a message for a moment, so that the lease has expired when this function returns.
async fn expired_lease(session: &Session, id: &str) -> Result<String> {
    let token = acquire(session, id, "1 ms").await?;
    let expired =
        format!("SELECT due_at < clock_timestamp() FROM idem.pending WHERE token = {token}");
    until("the lease has expired", async || {
        Ok(session.text(&expired).await? == "t")
    })
    .await?;
    Ok(token)
}

async fn only(session: &Session) -> Result<Handed> {
    let mut handed = next(session, 10).await?;
    ensure!(handed.len() == 1, "{handed:?}");
    Ok(handed.remove(0))
}

/// I4: a message was released, with an error or without one, and is then received. The receiver
/// stores its payload and keeps the attempts that are counted.
#[tokio::test]
async fn i4_receive_stores_a_released_message() -> Result<()> {
    let db = Database::with_idem("released").await?;
    let session = db.connect().await?;
    without_back_off(&session, 5).await?;
    for (id, more, attempt, error) in [("a", ", 'boom'", 2, "boom"), ("b", "", 1, "-")] {
        let token = acquire(&session, id, "1 hour").await?;
        release(&session, id, &token, more).await?;
        assert!(receive(&session, id, "").await?, "{id} is stored");
        assert!(!receive(&session, id, "").await?, "{id} is known");
        let handed = only(&session).await?;
        assert_eq!(handed.id, id);
        assert_eq!(
            (handed.attempt, handed.last_error.as_str()),
            (attempt, error)
        );
        assert!(claim(&session, id).await?);
    }
    Ok(())
}

/// I4: the lease of a message has expired, and the message is then received in a transaction of
/// each isolation level. The receiver stores its payload.
#[tokio::test]
async fn i4_receive_stores_a_message_with_expired_lease() -> Result<()> {
    let db = Database::with_idem("expired").await?;
    let (session, receiver) = (db.connect().await?, db.connect().await?);
    for level in LEVELS {
        receiver
            .run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1"))
            .await?;
        let id = level.replace(' ', "-");
        expired_lease(&session, &id).await?;
        assert!(receive(&receiver, &id, "").await?, "{id} is stored");
        receiver.run("COMMIT").await?;
        let handed = only(&session).await?;
        assert_eq!(handed.id, id);
        assert_eq!(
            (handed.attempt, handed.last_error.as_str()),
            (2, "the lease expired")
        );
        assert!(claim(&session, &id).await?);
    }
    Ok(())
}

/// I4: the holder of a valid lease dies after the message was received. `idem_next` returns the
/// message when the lease has ended, and not before.
#[tokio::test]
async fn i4_receive_stores_a_message_whose_holder_dies() -> Result<()> {
    let db = Database::with_idem("holder_dies").await?;
    let (holder, session) = (db.connect().await?, db.connect().await?);
    acquire(&holder, "m", "1 hour").await?;
    assert!(receive(&session, "m", "").await?, "the message is stored");
    assert!(!receive(&session, "m", "").await?, "the message is known");
    drop(holder);
    assert_eq!(
        ids(&next(&session, 1).await?),
        [""; 0],
        "the lease is valid"
    );
    // The lease ends.
    session
        .run("UPDATE idem.pending_0 SET due_at = clock_timestamp() WHERE id = 'm'")
        .await?;
    let handed = only(&session).await?;
    assert_eq!(handed.id, "m");
    assert_eq!(
        (handed.attempt, handed.last_error.as_str()),
        (2, "the lease expired")
    );
    Ok(())
}

/// I4: the holder of a valid lease completes the message after it was received. The message is
/// done, and is not returned by `idem_next`.
#[tokio::test]
async fn i4_holder_completes_a_message_that_was_received() -> Result<()> {
    let db = Database::with_idem("holder_completes").await?;
    let (holder, session) = (db.connect().await?, db.connect().await?);
    let token = acquire(&holder, "m", "1 hour").await?;
    assert!(receive(&session, "m", "").await?, "the message is stored");
    holder
        .run(&format!(
            "SELECT idem_extend('m', 'mail', {token}, '2 hours')"
        ))
        .await?;
    holder
        .run(&format!("SELECT idem_complete('m', 'mail', {token})"))
        .await?;
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0"
    );
    assert_eq!(ids(&next(&session, 1).await?), [""; 0]);
    assert!(!receive(&session, "m", "").await?, "the message is done");
    Ok(())
}

/// I4: the holder of a valid lease releases the message after it was received: with an error, and
/// with a final error, which makes the message a dead letter with its payload.
#[tokio::test]
async fn i4_holder_releases_a_message_that_was_received() -> Result<()> {
    let db = Database::with_idem("holder_releases").await?;
    let session = db.connect().await?;
    without_back_off(&session, 5).await?;
    let token = acquire(&session, "m", "1 hour").await?;
    assert!(receive(&session, "m", "").await?);
    release(&session, "m", &token, ", 'boom'").await?;
    let handed = only(&session).await?;
    assert_eq!((handed.attempt, handed.last_error.as_str()), (2, "boom"));
    release(&session, "m", &handed.token.to_string(), "").await?;
    assert!(claim(&session, "m").await?);

    let token = acquire(&session, "f", "1 hour").await?;
    assert!(receive(&session, "f", "").await?);
    release(&session, "f", &token, ", 'boom', true").await?;
    assert_eq!(session.text(DEAD).await?, "f|1|\"f\"|boom");
    Ok(())
}

const DEAD: &str = "SELECT id, attempt, convert_from(payload, 'UTF8'), last_error \
                    FROM idem.dead_letters";

/// I4: all columns of a received message are stored in the row of the lease. `deliver_after`
/// extends a back-off, and does not extend a lease.
#[tokio::test]
async fn i4_receive_stores_all_columns_of_a_pending_message() -> Result<()> {
    let db = Database::with_idem("all_columns").await?;
    let session = db.connect().await?;
    let more = ", headers => '{\"h\": 1}', key => 'k', type => 'T', content_type => 'c/t', \
                deliver_after => clock_timestamp() + interval '1 day'";
    let before = "SELECT seq FROM idem.pending WHERE id = 'leased'";
    acquire(&session, "leased", "1 hour").await?;
    let first_seq = session.text(before).await?;
    let token = acquire(&session, "released", "1 hour").await?;
    release(&session, "released", &token, ", 'boom'").await?;
    assert!(receive(&session, "leased", more).await?);
    assert!(receive(&session, "released", more).await?);
    assert_ne!(
        session.text(before).await?,
        first_seq,
        "seq is the order of arrival"
    );
    let stored = "SELECT p.id, p.attempt, p.state, p.order_key, p.due_at < clock_timestamp() + \
                  interval '2 hours', b.type, b.content_type, b.headers \
                  FROM idem.pending p JOIN idem.payload_row b \
                  ON b.slice = p.payload_slice AND b.seq = p.seq ORDER BY p.id";
    assert_eq!(
        session.text(stored).await?,
        "leased|1|l|k|t|T|c/t|{\"h\": 1}\nreleased|1|r|k|f|T|c/t|{\"h\": 1}"
    );
    Ok(())
}

/// A message that waited for a retry is received with a later `deliver_after`. Like any message
/// that its sender delays, it does not delay the other messages of its ordering key.
#[tokio::test]
async fn delayed_message_of_a_broker_does_not_block_its_key() -> Result<()> {
    let db = Database::with_idem("delayed_key").await?;
    let session = db.connect().await?;
    let token = acquire(&session, "delayed", "1 hour").await?;
    release(&session, "delayed", &token, ", 'boom'").await?;
    let delayed = ", key => 'k', deliver_after => clock_timestamp() + interval '1 day'";
    assert!(receive(&session, "delayed", delayed).await?);
    assert!(receive(&session, "other", ", key => 'k'").await?);
    assert_eq!(ids(&next(&session, 10).await?), ["other"]);
    Ok(())
}

/// I4: a message is received after its last attempt or after a final error. The receiver stores its
/// payload, and `idem_next` then makes the message a dead letter instead of returning it.
#[tokio::test]
async fn i4_received_message_without_attempts_becomes_dead() -> Result<()> {
    let db = Database::with_idem("no_attempts").await?;
    let session = db.connect().await?;
    without_back_off(&session, 1).await?;
    let token = acquire(&session, "used", "1 hour").await?;
    release(&session, "used", &token, ", 'boom'").await?;
    assert!(receive(&session, "used", "").await?);
    assert_eq!(ids(&next(&session, 1).await?), [""; 0]);
    assert_eq!(session.text(DEAD).await?, "used|1|\"used\"|boom");
    session.run("SELECT idem_discard('used', 'mail')").await?;

    without_back_off(&session, 5).await?;
    for (id, key) in [("final", ""), ("keyed", ", key => 'k'")] {
        let token = acquire(&session, id, "1 hour").await?;
        release(&session, id, &token, ", 'refused', true").await?;
        assert!(receive(&session, id, key).await?);
        assert_eq!(
            session.text("SELECT idem_next_wait('mail', 0)").await?,
            "t",
            "idem_next can make {id} a dead letter"
        );
        assert_eq!(ids(&next(&session, 1).await?), [""; 0]);
        assert_eq!(
            session.text(DEAD).await?,
            format!("{id}|1|\"{id}\"|refused")
        );
        session
            .run(&format!("SELECT idem_discard('{id}', 'mail')"))
            .await?;
    }
    Ok(())
}

/// I4: an effect is handed over while a consumer of a broker holds the lease of its message. The
/// hand-over stores the payload.
#[tokio::test]
async fn i4_hand_over_stores_a_leased_message() -> Result<()> {
    let db = Database::with_idem("hand_over_leased").await?;
    let session = db.connect().await?;
    let id = session
        .text("SELECT idem_send('mail', '\"m\"'::jsonb)")
        .await?;
    expired_lease(&session, &id).await?;
    let moved = "SELECT idem_hand_over('default', '{mail}')";
    assert_eq!(session.text(moved).await?, "1");
    let handed = "SELECT id, attempt, convert_from(payload, 'UTF8') FROM idem_next('mail')";
    assert_eq!(session.text(handed).await?, format!("{id}|2|\"m\""));
    Ok(())
}

/// I1: a lease of `idem_acquire` stops claims until it ends, also after the message was received. A
/// lease of `idem_next` does not.
#[tokio::test]
async fn i1_lease_of_a_received_message_stops_claims() -> Result<()> {
    let db = Database::with_idem("still_stops").await?;
    let session = db.connect().await?;
    let token = acquire(&session, "m", "1 hour").await?;
    assert!(receive(&session, "m", "").await?);
    let refusal = session
        .refused("SELECT idem_try_claim('m', 'mail')")
        .await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    let outcomes = "SELECT (idem_claim('m', 'mail', wait => false)).outcome, \
                    (SELECT outcome FROM idem_acquire('m', 'mail'))";
    assert_eq!(session.text(outcomes).await?, "in_progress|in_progress");
    release(&session, "m", &token, "").await?;
    assert_eq!(only(&session).await?.attempt, 1);
    assert!(
        claim(&session, "m").await?,
        "idem_next returned the message"
    );
    Ok(())
}

/// I4: a message was received during its lease. The rotation of pending messages copies its row and
/// the rotation of payloads copies its payload, and both are unchanged.
#[tokio::test]
async fn i4_rotations_keep_a_message_received_in_a_lease() -> Result<()> {
    let db = Database::with_idem("rotated_lease").await?;
    let session = db.connect().await?;
    let token = acquire(&session, "m", "1 hour").await?;
    assert!(receive(&session, "m", "").await?);
    let stored = "SELECT p.token, p.state, p.stops_claims, convert_from(b.payload, 'UTF8') \
                  FROM idem.pending p JOIN idem.payload_row b \
                  ON b.slice = p.payload_slice AND b.seq = p.seq WHERE p.id = 'm'";
    let expected = format!("{token}|l|t|\"m\"");
    assert_eq!(session.text(stored).await?, expected);
    session
        .run(
            "CREATE OR REPLACE FUNCTION idem.pending_is_large(rotation idem.pending_rotation)
             RETURNS boolean LANGUAGE sql RETURN true",
        )
        .await?;
    let current = "SELECT current FROM idem.pending_rotation";
    let first = session.text(current).await?;
    until("the pending messages rotate", async || {
        session.run("SELECT idem.rotate_pending()").await?;
        Ok(session.text(current).await? != first)
    })
    .await?;
    assert_eq!(session.text(stored).await?, expected);
    let slice = "SELECT payload_slice FROM idem.pending WHERE id = 'm'";
    let first = session.text(slice).await?;
    // The rotation leaves a slice only when the slice has payloads, so the test stores a message
    // before each step. The rotation copies the payload when it comes to its slice again.
    let mut others = 0;
    until("the payload is copied to another slice", async || {
        others += 1;
        receive(&session, &format!("other {others}"), "").await?;
        session
            .run("SELECT idem.rotate_payloads(0, '0 seconds')")
            .await?;
        Ok(session.text(slice).await? != first)
    })
    .await?;
    assert_eq!(session.text(stored).await?, expected);
    Ok(())
}
