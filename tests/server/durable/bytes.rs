//! Tests of `max_bytes`: one execution of `idem_next` returns at most `max_bytes` bytes of payloads
//! and headers.

use anyhow::Result;
use idem_testkit::{Database, Session};

/// Receives a message with a payload of `bytes` bytes that compress well.
async fn receive(session: &Session, id: &str, bytes: usize, more: &str) -> Result<()> {
    session
        .run(&format!(
            "SELECT idem_receive_bytes('{id}', 'mail', \
             convert_to(repeat('x', {bytes}), 'UTF8'){more})"
        ))
        .await
}

/// Returns the ids and payload sizes of the messages that `idem_next` returns.
async fn next(session: &Session, arguments: &str) -> Result<String> {
    let sql = format!(
        "SELECT coalesce(string_agg(id || ' ' || octet_length(payload), ', ' ORDER BY seq), '') \
         FROM idem_next('mail', 10{arguments})"
    );
    session.text(&sql).await
}

#[tokio::test]
async fn batch_stays_within_max_bytes() -> Result<()> {
    let db = Database::with_idem("bytes").await?;
    let session = db.connect().await?;
    for id in ["a", "b", "c"] {
        receive(&session, id, 1_000_000, "").await?;
    }
    assert_eq!(
        next(&session, ", max_bytes => 2999999").await?,
        "a 1000000, b 1000000"
    );
    let untouched = "SELECT attempt, state FROM idem.pending WHERE id = 'c'";
    assert_eq!(
        session.text(untouched).await?,
        "0|r",
        "a message that does not fit is not leased"
    );
    assert_eq!(next(&session, ", max_bytes => 1000000").await?, "c 1000000");
    Ok(())
}

#[tokio::test]
async fn first_message_is_returned_whatever_its_size() -> Result<()> {
    let db = Database::with_idem("first").await?;
    let session = db.connect().await?;
    receive(&session, "large", 1_000_000, "").await?;
    receive(&session, "small", 1, "").await?;
    assert_eq!(next(&session, ", max_bytes => 1").await?, "large 1000000");
    assert_eq!(next(&session, ", max_bytes => 1").await?, "small 1");
    Ok(())
}

#[tokio::test]
async fn batch_has_at_most_16_mib_by_default() -> Result<()> {
    let db = Database::with_idem("default").await?;
    let session = db.connect().await?;
    for id in ["a", "b", "c"] {
        receive(&session, id, 8 << 20, "").await?;
    }
    assert_eq!(next(&session, "").await?, "a 8388608, b 8388608");
    Ok(())
}

#[tokio::test]
async fn headers_count_towards_max_bytes() -> Result<()> {
    let db = Database::with_idem("headers").await?;
    let session = db.connect().await?;
    let headers = ", headers => jsonb_build_object('h', repeat('x', 1000))";
    for id in ["a", "b"] {
        receive(&session, id, 10, headers).await?;
    }
    assert_eq!(next(&session, ", max_bytes => 1500").await?, "a 10");
    assert_eq!(next(&session, ", max_bytes => 1500").await?, "b 10");
    Ok(())
}

/// When a large message does not fit, a later small message is not returned before it.
#[tokio::test]
async fn small_message_waits_behind_one_that_does_not_fit() -> Result<()> {
    let db = Database::with_idem("behind").await?;
    let session = db.connect().await?;
    for (id, bytes) in [("a", 600), ("b", 600), ("c", 1)] {
        receive(&session, id, bytes, "").await?;
    }
    assert_eq!(next(&session, ", max_bytes => 1000").await?, "a 600");
    assert_eq!(next(&session, ", max_bytes => 1000").await?, "b 600, c 1");
    Ok(())
}

/// Goal: `max_bytes` also limits a search that visits only the first message of each key.
#[tokio::test]
async fn messages_of_many_keys_stay_within_max_bytes() -> Result<()> {
    let db = Database::with_idem("keys").await?;
    let session = db.connect().await?;
    // The first message of the key 'full' is leased, and 699 messages wait behind it. After 600
    // waiting messages, a search for 10 messages stops visiting each message. From then on it
    // visits only the first message of each key.
    session
        .run(
            "SELECT idem_receive_bytes('m' || n, 'mail', '\\x01', key => 'full') \
             FROM generate_series(1, 700) n; \
             SELECT id FROM idem_next('mail')",
        )
        .await?;
    for key in ["k1", "k2", "k3"] {
        receive(&session, key, 600, &format!(", key => '{key}'")).await?;
    }
    assert_eq!(
        next(&session, ", max_bytes => 1300").await?,
        "k1 600, k2 600"
    );
    assert_eq!(next(&session, ", max_bytes => 1300").await?, "k3 600");
    Ok(())
}
