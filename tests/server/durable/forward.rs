//! Tests of forwarding. A dead letter that is forwarded to a broker becomes an effect of its
//! message.

use anyhow::Result;
use idem_testkit::{Database, Session};

/// Creates a dead letter of a broker message, with headers that RabbitMQ, NATS and idem itself
/// write.
async fn reject(session: &Session, id: &str) -> Result<()> {
    let headers = r#"{"message-id": "m", "Nats-Msg-Id": "m", "x-death": "[]",
                      "x-first-death-queue": "q",
                      "x-delivery-count": 3,
                      "Nats-Expected-Stream": "s", "idem-source-place": "0",
                      "idem-dead-letter-source": "q",
                      "tenant": "t-1", "traceparent": "00-1"}"#;
    let sql = format!(
        "SELECT idem_reject('{id}', 'orders', decode('ff00', 'hex'), 'no such customer', \
         '{headers}', 'k', 'Order', 'text/plain', 'queue')"
    );
    assert_eq!(session.text(&sql).await?, "t");
    Ok(())
}

const EFFECTS: &str =
    "SELECT topic, key, type, encode(payload, 'hex'), content_type, headers, traceparent
     FROM idem_effects('a', 'orders')";

#[tokio::test]
async fn i4_forwarded_dead_letter_is_an_effect_of_its_message() -> Result<()> {
    let db = Database::with_idem("forward").await?;
    let session = db.connect().await?;
    reject(&session, "a").await?;
    let message_id = session
        .text("SELECT idem_forward('a', 'orders', 'orders.again')")
        .await?;
    assert_eq!(
        session
            .text("SELECT message_id FROM idem_effects('a', 'orders')")
            .await?,
        message_id
    );
    assert_eq!(
        session.text(EFFECTS).await?,
        r#"orders.again|k|Order|ff00|text/plain|{"tenant": "t-1", "traceparent": "00-1"}|00-1"#
    );
    assert_eq!(
        session
            .text("SELECT idem_try_record('a', 'orders', '[]')")
            .await?,
        "f",
        "the message is a duplicate"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.dead_letters")
            .await?,
        "0"
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0"
    );
    let again = "SELECT idem_forward('a', 'orders', 'orders.again'), \
                 idem_forward('b', 'orders', 'orders.again')";
    assert_eq!(
        session.text(again).await?,
        "NULL|NULL",
        "there is no dead letter"
    );
    assert_eq!(session.text("SELECT count(*) FROM idem.outbox").await?, "1");
    Ok(())
}

#[tokio::test]
async fn i2_forward_that_is_rolled_back_changes_nothing() -> Result<()> {
    let db = Database::with_idem("forward_rolled_back").await?;
    let session = db.connect().await?;
    reject(&session, "a").await?;
    session
        .run("BEGIN; SELECT idem_forward('a', 'orders', 'orders.again'); ROLLBACK")
        .await?;
    assert_eq!(session.text("SELECT id FROM idem.dead_letters").await?, "a");
    assert_eq!(session.text("SELECT count(*) FROM idem.outbox").await?, "0");
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('a', 'orders')")
            .await?,
        "f"
    );
    Ok(())
}

#[tokio::test]
async fn i4_dead_letters_are_forwarded_in_bulk_by_error() -> Result<()> {
    let db = Database::with_idem("forward_all").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    for id in ["a", "b", "c", "d"] {
        reject(&session, id).await?;
    }
    session
        .run("SELECT idem_reject('x', 'orders', 'payload', 'declined')")
        .await?;
    other
        .run("BEGIN; SELECT idem_try_claim('b', 'orders')")
        .await?;
    let forward = "SELECT idem_forward_all('orders', 'orders.again', 'no such%', 3)";
    assert_eq!(
        session.text(forward).await?,
        "2",
        "another transaction is claiming b"
    );
    other.run("ROLLBACK").await?;
    assert_eq!(session.text(forward).await?, "2");
    assert_eq!(session.text(forward).await?, "0");
    assert_eq!(session.text("SELECT id FROM idem.dead_letters").await?, "x");
    assert_eq!(session.text("SELECT count(*) FROM idem.outbox").await?, "4");
    Ok(())
}

/// I1: two operators forward the same dead letter. One operator succeeds, and one effect is
/// recorded.
#[tokio::test]
async fn i1_dead_letter_is_forwarded_once_by_two_sessions() -> Result<()> {
    let db = Database::with_idem("forward_twice").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    reject(&session, "a").await?;
    other
        .run("BEGIN; SELECT idem_forward('a', 'orders', 'first')")
        .await?;
    let pid = session.pid().await?;
    let forwarding = tokio::spawn(async move {
        session
            .text("SELECT idem_forward('a', 'orders', 'second')")
            .await
    });
    db.until_blocked(pid).await?;
    other.run("COMMIT").await?;
    assert_eq!(forwarding.await??, "NULL");
    assert_eq!(other.text("SELECT topic FROM idem.outbox").await?, "first");
    Ok(())
}

/// A message can be redelivered and handled after it has become a dead letter. Its dead letter is
/// then not forwarded.
#[tokio::test]
async fn dead_letter_of_a_claimed_message_is_not_forwarded() -> Result<()> {
    let db = Database::with_idem("forward_claimed").await?;
    let session = db.connect().await?;
    for id in ["a", "b", "c"] {
        reject(&session, id).await?;
    }
    session
        .run("BEGIN; SELECT idem_try_claim('a', 'orders'), idem_try_claim('b', 'orders'); COMMIT")
        .await?;
    let refusal = session
        .refused("SELECT idem_forward('a', 'orders', 'again')")
        .await?;
    assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    assert_eq!(
        session
            .text("SELECT idem_forward_all('orders', 'again')")
            .await?,
        "1"
    );
    assert_eq!(
        session
            .text("SELECT id FROM idem.dead_letters WHERE processed")
            .await?,
        "a\nb"
    );
    assert_eq!(session.text("SELECT count(*) FROM idem.outbox").await?, "1");
    Ok(())
}

#[tokio::test]
async fn i4_dead_letter_is_not_forwarded_without_a_relay() -> Result<()> {
    let db = Database::with_idem("forward_no_relay").await?;
    let session = db.connect().await?;
    reject(&session, "a").await?;
    session.run("SELECT idem_drop_relay('default')").await?;
    for function in [
        "idem_forward('a', 'orders', 'again')",
        "idem_forward_all('orders', 'again')",
    ] {
        let refusal = session.refused(&format!("SELECT {function}")).await?;
        assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    }
    assert_eq!(session.text("SELECT id FROM idem.dead_letters").await?, "a");
    Ok(())
}
