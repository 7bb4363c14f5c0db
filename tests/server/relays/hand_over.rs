//! Tests of I4 for the local hand-over: an effect that its destination cannot receive does not stop
//! the partition.

use anyhow::Result;
use idem_testkit::{Database, Session, until};

/// A text id. Its key, the first half of its SHA-256, is also a valid message id.
const TEXT_ID: &str = "invoice-7";

async fn colliding_id(session: &Session) -> Result<String> {
    session
        .text(&format!(
            "SELECT left(encode(sha256('{TEXT_ID}'), 'hex'), 32)::uuid"
        ))
        .await
}

/// Sends one effect to the destination `mail`. `n` is its payload and the end of its message id.
async fn send(session: &Session, n: u32) -> Result<()> {
    let sql = format!(
        "SELECT idem_send('mail', '{n}'::jsonb, message_id => '00000000-0000-0000-0000-{n:012}')"
    );
    session.text(&sql).await.map(drop)
}

/// Hands over effects until no effect is left. Returns the number of effects of each hand-over.
async fn hand_over(session: &Session, max_effects: u32) -> Result<Vec<String>> {
    let mut counts = Vec::new();
    loop {
        let sql = format!("SELECT idem_hand_over('default', '{{mail}}', 0, {max_effects})");
        match session.text(&sql).await?.as_str() {
            "0" => return Ok(counts),
            effects => counts.push(effects.to_owned()),
        }
    }
}

async fn received(session: &Session) -> Result<String> {
    session
        .text(
            "SELECT string_agg(convert_from(payload, 'UTF8'), ',' ORDER BY seq) \
             FROM idem_next('mail', 100)",
        )
        .await
}

/// I4: a role can choose a message id that collides with a text id. Only the effect with this
/// message id is parked.
#[tokio::test]
async fn i4_colliding_effect_is_parked_alone() -> Result<()> {
    let db = Database::with_idem("colliding").await?;
    let session = db.connect().await?;
    session
        .run(&format!(
            "SELECT idem_try_claim('{TEXT_ID}', 'mail'); SELECT 1"
        ))
        .await?;
    for n in 1..=3 {
        send(&session, n).await?;
    }
    let colliding = colliding_id(&session).await?;
    session
        .run(&format!(
            "SELECT idem_send('mail', '4'::jsonb, message_id => '{colliding}')"
        ))
        .await?;
    for n in 5..=6 {
        send(&session, n).await?;
    }
    assert_eq!(
        hand_over(&session, 100).await?,
        ["4", "2"],
        "the first batch ends with the effect that is parked"
    );
    assert_eq!(received(&session).await?, "1,2,3,5,6");
    assert_eq!(
        session
            .text("SELECT message_id, error LIKE '23000: %' FROM idem.parked")
            .await?,
        format!("{colliding}|t")
    );
    Ok(())
}

/// I4: each effect that cannot be received is parked, also when such effects are next to each other
/// or at an end of the outbox, with batches of several sizes.
#[tokio::test]
async fn i4_each_effect_that_cannot_be_received_is_parked() -> Result<()> {
    for max_effects in [1, 2, 3, 100] {
        let db = Database::with_idem("refused").await?;
        let session = db.connect().await?;
        for n in 1..=9 {
            send(&session, n).await?;
        }
        // Make four effects invalid for their destination. A restored database can contain such
        // effects.
        session
            .run(
                "UPDATE idem.outbox_0 SET key = repeat('k', 2000) WHERE seq IN (1, 4);
                 UPDATE idem.outbox_0 SET type = '' WHERE seq = 5;
                 UPDATE idem.outbox_0 SET headers = '[]' WHERE seq = 9",
            )
            .await?;
        hand_over(&session, max_effects).await?;
        assert_eq!(received(&session).await?, "2,3,6,7,8");
        assert_eq!(
            session
                .text(
                    "SELECT string_agg(seq::text, ',' ORDER BY seq), \
                     bool_and(error LIKE '22023: %') FROM idem.parked"
                )
                .await?,
            "1,4,5,9|t"
        );
        assert_eq!(
            session
                .text("SELECT lag_messages, parked FROM idem.relays")
                .await?,
            "0|4"
        );
    }
    Ok(())
}

/// I4: an effect that is unparked without a correction becomes a delayed effect, and the next
/// hand-over parks it again.
#[tokio::test]
async fn i4_unparked_effect_that_still_collides_is_parked_again() -> Result<()> {
    let db = Database::with_idem("again").await?;
    let session = db.connect().await?;
    session
        .run(&format!(
            "SELECT idem_try_claim('{TEXT_ID}', 'mail'); SELECT 1"
        ))
        .await?;
    let colliding = colliding_id(&session).await?;
    session
        .run(&format!(
            "SELECT idem_send('mail', '1'::jsonb, message_id => '{colliding}')"
        ))
        .await?;
    assert_eq!(hand_over(&session, 100).await?, ["1"]);
    let unpark = format!("SELECT idem_relay_unpark('default', '{colliding}')");
    assert_eq!(session.text(&unpark).await?, "t");
    send(&session, 2).await?;
    assert_eq!(hand_over(&session, 100).await?, ["1", "1"]);
    assert_eq!(
        session
            .text("SELECT delayed, parked FROM idem.relays")
            .await?,
        "0|1"
    );
    session
        .run(&format!("SELECT idem_forget('{TEXT_ID}', 'mail')"))
        .await?;
    assert_eq!(session.text(&unpark).await?, "t");
    hand_over(&session, 100).await?;
    assert_eq!(
        received(&session).await?,
        "2,1",
        "in the order in which they were received"
    );
    Ok(())
}

/// I4: an error of the environment, here a lock timeout, fails the hand-over and parks no effect.
/// The next hand-over succeeds.
#[tokio::test]
async fn i4_lock_timeout_fails_hand_over_and_parks_no_effect() -> Result<()> {
    let db = Database::with_idem("environment").await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    send(&session, 1).await?;
    send(&session, 2).await?;
    claimer
        .run("BEGIN; SELECT idem_try_claim('00000000-0000-0000-0000-000000000002', 'mail')")
        .await?;
    session.run("SET lock_timeout = '100ms'").await?;
    let refused = session
        .refused("SELECT idem_hand_over('default', '{mail}')")
        .await?;
    assert_eq!(refused.sqlstate, "55P03", "{refused:?}");
    assert_eq!(
        session
            .text("SELECT lag_messages, parked FROM idem.relays")
            .await?,
        "2|0"
    );
    claimer.run("ROLLBACK").await?;
    until("the lock of the claimer is released", async || {
        Ok(session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?
            == "2")
    })
    .await?;
    assert_eq!(received(&session).await?, "1,2");
    Ok(())
}
