//! I4: the outbox turns when every relay has what it would forget, and not before.

use anyhow::Result;
use idem_tests::harness::{Database, Session, until};

use super::reader::{Reader, send};

/// How long the rings of the inbox keep; the outbox keeps one and a half times as long. From the
/// longer to the shorter.
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

/// The next step of the ring may be done now.
pub async fn make_due(session: &Session, ring: &str) -> Result<()> {
    session
        .run(&format!(
            "UPDATE idem.ring SET turned_at = turned_at - retention WHERE name = '{ring}'"
        ))
        .await
}

pub async fn maintain(session: &Session) -> Result<()> {
    session.run("CALL idem_maintain()").await
}

pub async fn turns(session: &Session, ring: &str) -> Result<i64> {
    let turns = session
        .text(&format!(
            "SELECT turns FROM idem.ring WHERE name = '{ring}'"
        ))
        .await?;
    Ok(turns.parse()?)
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
async fn i4_a_stuck_relay_blocks_the_outbox_and_the_health_check_names_it() -> Result<()> {
    const EFFECTS: usize = 500;
    let db = Database::with_idem("stuck").await?;
    let (session, keeper) = (db.connect().await?, db.connect().await?);
    session.run("SELECT idem_create_relay('stuck')").await?;
    keep_for(&session, "100 milliseconds").await?;
    session
        .run(&format!(
            "SELECT idem_send('things', to_jsonb((SELECT string_agg(md5(n || ' ' || m), '') FROM generate_series(1, 100) m))) \
             FROM generate_series(1, {EFFECTS}) n"
        ))
        .await?;
    assert_eq!(
        Reader::of(&db, "default").await?.drain().await?.len(),
        EFFECTS
    );

    until("the outbox is blocked", async || {
        maintain(&keeper).await?;
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

    // However long that lasts: the rings of the inbox go on, the outbox stands.
    let (stands_at, full) = (
        turns(&session, "outbox").await?,
        outbox_bytes(&session).await?,
    );
    let inbox = turns(&session, "long").await?;
    until("the inbox has turned five times more", async || {
        maintain(&keeper).await?;
        Ok(turns(&session, "long").await? >= inbox + 5)
    })
    .await?;
    assert_eq!(turns(&session, "outbox").await?, stands_at);
    assert_eq!(outbox_bytes(&session).await?, full);

    let late = Reader::of(&db, "stuck").await?.drain().await?;
    assert_eq!(late.len(), EFFECTS, "nothing is lost");
    assert_eq!(session.text(blocks).await?, "default|f|0\nstuck|f|0");
    until(
        "the outbox has turned on, and its space is free",
        async || {
            maintain(&keeper).await?;
            Ok(turns(&session, "outbox").await? > stands_at
                && outbox_bytes(&session).await? < full / 4)
        },
    )
    .await?;
    until("the health check calms down", async || {
        Ok(health(&session).await?.0 == "ok")
    })
    .await
}

/// The relay that holds the outbox need not come back: the operator can drop it.
#[tokio::test]
async fn i4_a_dropped_relay_holds_nothing() -> Result<()> {
    let db = Database::with_idem("dropped").await?;
    let (session, keeper) = (db.connect().await?, db.connect().await?);
    send(&session, "a").await?;
    keep_for(&session, "100 milliseconds").await?;
    until("the outbox is blocked", async || {
        maintain(&keeper).await?;
        Ok(health(&session).await?.0 == "critical")
    })
    .await?;
    session.run("SELECT idem_drop_relay('default')").await?;
    until("the outbox forgets it", async || {
        maintain(&keeper).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await
}

/// Its effect stands in a slice that is sealed long before it commits.
#[tokio::test]
async fn i4_an_effect_of_a_transaction_that_is_open_across_the_turn_is_delivered() -> Result<()> {
    let db = Database::with_idem("across").await?;
    let (session, keeper, long) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    let relay = Reader::of(&db, "default").await?;
    keep_for(&session, "100 milliseconds").await?;
    keeper.run("SET idem.fence_wait = 0").await?;
    long.run("BEGIN").await?;
    send(&long, "late").await?;
    until("the outbox turns under it", async || {
        maintain(&keeper).await?;
        Ok(turns(&session, "outbox").await? == 1)
    })
    .await?;
    send(&session, "early").await?;
    assert_eq!(relay.drained().await?, ["early"]);
    send(&long, "late too").await?;

    // The fence behind the turn is pinned: the ring stands while the transaction is open.
    for _ in 0..3 {
        make_due(&session, "outbox").await?;
        maintain(&keeper).await?;
    }
    assert_eq!(turns(&session, "outbox").await?, 1);
    long.run("COMMIT").await?;
    until("the outbox is blocked by what it recorded", async || {
        maintain(&keeper).await?;
        Ok(health(&session).await?.0 == "critical")
    })
    .await?;
    assert_eq!(relay.drained().await?, ["late", "late too"]);
    until("and turns on when that is delivered", async || {
        maintain(&keeper).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await
}

/// A batch that is out is not acknowledged: its slice is held, also when it is the last one in
/// there.
#[tokio::test]
async fn i4_a_leased_batch_holds_its_slice() -> Result<()> {
    let db = Database::with_idem("leased").await?;
    let (session, keeper) = (db.connect().await?, db.connect().await?);
    let relay = Reader::of(&db, "default").await?;
    keep_for(&session, "100 milliseconds").await?;
    send(&session, "a").await?;
    let batch = relay.batch().await?;
    until("the outbox is blocked", async || {
        maintain(&keeper).await?;
        Ok(health(&session).await?.0 == "critical")
    })
    .await?;
    assert_eq!(
        session.text("SELECT count(*) FROM idem.outbox_row").await?,
        "1"
    );
    relay.ack(batch.token).await?;
    until("the outbox forgets it", async || {
        maintain(&keeper).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await
}
