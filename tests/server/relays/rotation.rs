//! Tests of I4: the outbox rotates only after every relay has read the effects that the rotation
//! removes.

use anyhow::Result;
use idem_testkit::ring::{make_due, rotations};
use idem_testkit::{Database, Session, until};

use super::reader::{Reader, send};

/// Shortens the retention of the inbox rings, beginning with the shortest ring. The outbox keeps
/// effects one and a half times as long.
pub async fn keep_for(session: &Session, retention: &str) -> Result<()> {
    for ring in ["short", "standard", "long"] {
        session
            .run(&format!(
                "SELECT idem_set_retention('{ring}', '{retention}')"
            ))
            .await?;
    }
    Ok(())
}

pub async fn maintain(session: &Session) -> Result<()> {
    session.run("CALL idem_maintain()").await
}

async fn outbox_bytes(session: &Session) -> Result<i64> {
    Ok(session
        .text("SELECT sum(bytes) FROM idem.rings WHERE ring = 'outbox'")
        .await?
        .parse()?)
}

async fn health(session: &Session) -> Result<(String, String)> {
    let row = session
        .query_one(
            "SELECT status, detail FROM idem_health() WHERE check_name = 'outbox'",
            &[],
        )
        .await?;
    Ok((row.get(0), row.get(1)))
}

#[tokio::test]
async fn i4_stuck_relay_blocks_outbox_and_health_names_it() -> Result<()> {
    const EFFECTS: usize = 500;
    let db = Database::with_idem("stuck").await?;
    let (session, maintainer) = (db.connect().await?, db.connect().await?);
    session.run("SELECT idem_create_relay('stuck')").await?;
    keep_for(&session, "100 milliseconds").await?;
    session
        .run(&format!(
            "SELECT idem_send('things', \
             to_jsonb((SELECT string_agg(md5(n || ' ' || m), '') FROM generate_series(1, 100) m))) \
             FROM generate_series(1, {EFFECTS}) n"
        ))
        .await?;
    assert_eq!(
        Reader::of(&db, "default").await?.drain().await?.len(),
        EFFECTS
    );

    until("the outbox is blocked", async || {
        maintain(&maintainer).await?;
        Ok(health(&session).await?.0 == "critical")
    })
    .await?;
    let (_, detail) = health(&session).await?;
    assert!(detail.contains("relay stuck "), "{detail}");
    let blocks = "SELECT relay, blocks <> '{}', lag_messages FROM idem.relays ORDER BY relay";
    assert_eq!(
        session.text(blocks).await?,
        format!("default|f|0\nstuck|t|{EFFECTS}")
    );

    // The rings of the inbox continue to rotate, however long the relay is stuck, and the outbox
    // does not rotate.
    let (blocked_at, full) = (
        rotations(&session, "outbox").await?,
        outbox_bytes(&session).await?,
    );
    let inbox = rotations(&session, "long").await?;
    until("the inbox has rotated five more times", async || {
        maintain(&maintainer).await?;
        Ok(rotations(&session, "long").await? >= inbox + 5)
    })
    .await?;
    assert_eq!(rotations(&session, "outbox").await?, blocked_at);
    assert_eq!(outbox_bytes(&session).await?, full);

    let late = Reader::of(&db, "stuck").await?.drain().await?;
    assert_eq!(late.len(), EFFECTS, "no effect is lost");
    assert_eq!(session.text(blocks).await?, "default|f|0\nstuck|f|0");
    until(
        "the outbox has rotated, and its space is free",
        async || {
            maintain(&maintainer).await?;
            Ok(rotations(&session, "outbox").await? > blocked_at
                && outbox_bytes(&session).await? < full / 4)
        },
    )
    .await?;
    until("the health check is ok", async || {
        Ok(health(&session).await?.0 == "ok")
    })
    .await
}

/// I4: the operator can drop a relay that blocks the outbox and does not return.
#[tokio::test]
async fn i4_dropped_relay_does_not_block_the_outbox() -> Result<()> {
    let db = Database::with_idem("dropped").await?;
    let (session, maintainer) = (db.connect().await?, db.connect().await?);
    send(&session, "a").await?;
    keep_for(&session, "100 milliseconds").await?;
    until("the outbox is blocked", async || {
        maintain(&maintainer).await?;
        Ok(health(&session).await?.0 == "critical")
    })
    .await?;
    session.run("SELECT idem_drop_relay('default')").await?;
    until("the outbox forgets the effect", async || {
        maintain(&maintainer).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await
}

/// I4: the effect of a transaction that is open during a rotation is in a slice that is sealed long
/// before the commit. The effect is delivered before the slice is removed.
#[tokio::test]
async fn i4_transaction_open_across_rotation_is_delivered() -> Result<()> {
    let db = Database::with_idem("across").await?;
    let (session, maintainer, long) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    let relay = Reader::of(&db, "default").await?;
    keep_for(&session, "100 milliseconds").await?;
    maintainer.run("SET idem.fence_wait = 0").await?;
    long.run("BEGIN").await?;
    send(&long, "late").await?;
    until("the outbox rotates during the transaction", async || {
        maintain(&maintainer).await?;
        Ok(rotations(&session, "outbox").await? == 1)
    })
    .await?;
    send(&session, "early").await?;
    assert_eq!(relay.drained().await?, ["early"]);
    send(&long, "late too").await?;

    // The fence after the rotation waits for the open transaction, so the ring does not rotate
    // again.
    for _ in 0..3 {
        make_due(&session, "outbox").await?;
        maintain(&maintainer).await?;
    }
    assert_eq!(rotations(&session, "outbox").await?, 1);
    long.run("COMMIT").await?;
    until(
        "the outbox is blocked by the effects of the transaction",
        async || {
            maintain(&maintainer).await?;
            Ok(health(&session).await?.0 == "critical")
        },
    )
    .await?;
    assert_eq!(relay.drained().await?, ["late", "late too"]);
    until(
        "the outbox rotates after the effects are delivered",
        async || {
            maintain(&maintainer).await?;
            Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
        },
    )
    .await
}

/// I4: a leased batch is not acknowledged, so its slice is kept, also when it is the last batch of
/// the slice.
#[tokio::test]
async fn i4_leased_batch_keeps_its_slice() -> Result<()> {
    let db = Database::with_idem("leased").await?;
    let (session, maintainer) = (db.connect().await?, db.connect().await?);
    let relay = Reader::of(&db, "default").await?;
    keep_for(&session, "100 milliseconds").await?;
    send(&session, "a").await?;
    let batch = relay.batch().await?;
    until("the outbox is blocked", async || {
        maintain(&maintainer).await?;
        Ok(health(&session).await?.0 == "critical")
    })
    .await?;
    assert_eq!(
        session.text("SELECT count(*) FROM idem.outbox_row").await?,
        "1"
    );
    relay.ack(batch.token).await?;
    until("the outbox forgets the effect", async || {
        maintain(&maintainer).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await
}
