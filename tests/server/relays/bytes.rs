//! A batch is limited in bytes and in effects. An effect that is larger than the limit is delivered
//! in a batch of its own.

use anyhow::Result;
use idem_testkit::{Database, Session, until};

/// Sends one effect for each size in `sizes`, in bytes. The payload of the first effect repeats the
/// letter a, the payload of the second the letter b, and so on.
async fn send_sizes(session: &Session, sizes: &[usize]) -> Result<()> {
    for (n, size) in sizes.iter().enumerate() {
        let letter = (b'a' + u8::try_from(n)?) as char;
        session
            .run(&format!(
                "SELECT idem_send_bytes('things', repeat('{letter}', {size})::bytea)"
            ))
            .await?;
    }
    Ok(())
}

/// Leases and acknowledges batches until no batch is left. Returns the first letters of the
/// payloads, one string for each batch.
async fn batches(session: &Session, limits: &str) -> Result<Vec<String>> {
    let mut batches = Vec::new();
    loop {
        let rows = session
            .query(
                &format!(
                    "SELECT token, left(convert_from(payload, 'UTF8'), 1) \
                     FROM idem_relay_next('default', {limits})"
                ),
                &[],
            )
            .await?;
        let Some(first) = rows.first() else {
            return Ok(batches);
        };
        let token: i64 = first.get(0);
        batches.push(rows.iter().map(|row| row.get::<_, String>(1)).collect());
        session
            .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
            .await?;
    }
}

#[tokio::test]
async fn i5_batch_is_bounded_in_bytes_and_loses_nothing() -> Result<()> {
    let db = Database::with_idem("bytes").await?;
    let session = db.connect().await?;
    send_sizes(&session, &[1000, 1000, 1000, 5000, 100, 100, 100]).await?;
    assert_eq!(
        batches(&session, "max_bytes => 2500").await?,
        ["ab", "c", "d", "efg"],
        "the order is kept, and the largest effect is alone in its batch"
    );
    send_sizes(&session, &[10, 10, 10, 10]).await?;
    assert_eq!(
        batches(&session, "max_bytes => 1").await?,
        ["a", "b", "c", "d"]
    );
    send_sizes(&session, &[10, 10, 10]).await?;
    assert_eq!(
        batches(&session, "max_bytes => 20, max_effects => 2").await?,
        ["ab", "c"],
        "both limits at once"
    );
    Ok(())
}

#[tokio::test]
async fn batch_has_at_most_sixteen_megabytes_by_default() -> Result<()> {
    let db = Database::with_idem("megabytes").await?;
    let session = db.connect().await?;
    send_sizes(&session, &[6 << 20, 6 << 20, 6 << 20]).await?;
    assert_eq!(batches(&session, "max_effects => 10").await?, ["ab", "c"]);
    Ok(())
}

/// I4: `max_bytes` also limits a batch of delayed effects, and headers count towards the limit.
#[tokio::test]
async fn i4_delayed_batch_is_bounded_in_bytes() -> Result<()> {
    let db = Database::with_idem("delayed_bytes").await?;
    let session = db.connect().await?;
    session
        .run(
            "SELECT idem_send('things', ('\"' || letter || '\"')::jsonb,
                              headers => jsonb_build_object('h', repeat('h', 1000)))
               FROM unnest('{a,b,c}'::text[]) letter",
        )
        .await?;
    session
        .run(
            "CREATE TEMP TABLE batch AS
                 SELECT * FROM idem_relay_next('default', max_bytes => 100000);
             SELECT idem_relay_park('default', 0, token, message_id, 'refused') FROM batch;
             SELECT idem_relay_ack('default', 0, max(token)) FROM batch;
             SELECT idem_relay_unpark_all('default')",
        )
        .await?;
    let mut all = Vec::new();
    until("the delayed effects are due", async || {
        all.extend(batches(&session, "max_bytes => 2100").await?);
        Ok(!all.is_empty())
    })
    .await?;
    assert_eq!(
        all,
        ["\"\"", "\""],
        "a batch of two effects, then a batch of one"
    );
    assert_eq!(session.text("SELECT delayed FROM idem.relays").await?, "0");
    Ok(())
}

/// A hand-over processes each batch in one transaction, so `max_bytes` limits these batches, too.
#[tokio::test]
async fn hand_over_is_bounded_in_bytes() -> Result<()> {
    let db = Database::with_idem("hand_over_bytes").await?;
    let session = db.connect().await?;
    send_sizes(&session, &[1000, 1000, 1000]).await?;
    let hand_over = "SELECT idem_hand_over('default', '{things}', max_bytes => 2500)";
    for expected in ["2", "1", "0"] {
        assert_eq!(session.text(hand_over).await?, expected);
    }
    assert_eq!(
        session
            .text("SELECT waiting FROM idem.waiting_messages")
            .await?,
        "3"
    );
    Ok(())
}
