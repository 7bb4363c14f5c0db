//! I4: parked effects wait until an operator retries or discards them, one by one or in bulk.

use anyhow::Result;
use idem_testkit::Database;

use super::reader::{Reader, send};

const NOTHING: [&str; 0] = [];

/// Parks five effects, three effects with one error and two effects with another error. Returns the
/// reader.
async fn parked(db: &Database) -> Result<Reader> {
    let relay = Reader::of(db, "default").await?;
    for says in ["a", "b", "c", "d", "e"] {
        send(&relay.session, says).await?;
    }
    let batch = relay.batch().await?;
    for effect in &batch.effects {
        let error = if ["b", "d"].contains(&effect.says.as_str()) {
            "no such exchange"
        } else {
            "the broker takes at most 1 MB"
        };
        relay
            .session
            .run(&format!(
                "SELECT idem_relay_park('default', 0, {}, '{}', '{error}')",
                batch.token, effect.message_id
            ))
            .await?;
    }
    relay.ack(batch.token).await?;
    assert_eq!(relay.drained().await?, NOTHING);
    Ok(relay)
}

#[tokio::test]
async fn i4_unpark_all_retries_the_oldest_matching_effects() -> Result<()> {
    let db = Database::with_idem("unpark_all").await?;
    let relay = parked(&db).await?;
    let unpark = async |arguments: &str| {
        let call = format!("SELECT idem_relay_unpark_all('default'{arguments})");
        relay.session.text(&call).await
    };
    assert_eq!(unpark(", 'the broker%', 2").await?, "2");
    assert_eq!(
        relay.drained().await?,
        ["a", "c"],
        "in the order of their numbers"
    );
    assert_eq!(unpark(", 'no such queue%'").await?, "0");
    assert_eq!(unpark("").await?, "3");
    assert_eq!(relay.drained().await?, ["b", "d", "e"]);
    assert_eq!(
        relay
            .session
            .text("SELECT parked, delayed FROM idem.relays")
            .await?,
        "0|0"
    );
    Ok(())
}

#[tokio::test]
async fn i4_discard_removes_matching_effects_only() -> Result<()> {
    let db = Database::with_idem("discard").await?;
    let relay = parked(&db).await?;
    let session = &relay.session;
    let first = session
        .text("SELECT message_id FROM idem.parked ORDER BY seq LIMIT 1")
        .await?;
    let discard = format!("SELECT idem_relay_discard('default', '{first}')");
    assert_eq!(session.text(&discard).await?, "t");
    assert_eq!(
        session.text(&discard).await?,
        "f",
        "the effect is already discarded"
    );
    assert_eq!(
        session
            .text("SELECT idem_relay_discard_all('default', '%exchange')")
            .await?,
        "2"
    );
    assert_eq!(session.text("SELECT parked FROM idem.relays").await?, "2");
    assert_eq!(
        session
            .text("SELECT idem_relay_unpark_all('default')")
            .await?,
        "2"
    );
    assert_eq!(relay.drained().await?, ["c", "e"]);
    Ok(())
}

/// A bulk function of one relay does not change the parked effects of another relay.
#[tokio::test]
async fn bulk_functions_touch_one_relay_only() -> Result<()> {
    let db = Database::with_idem("one_relay").await?;
    let relay = parked(&db).await?;
    relay
        .session
        .run("SELECT idem_create_relay('other')")
        .await?;
    for function in ["idem_relay_unpark_all", "idem_relay_discard_all"] {
        assert_eq!(
            relay
                .session
                .text(&format!("SELECT {function}('other')"))
                .await?,
            "0"
        );
    }
    assert_eq!(
        relay
            .session
            .text("SELECT count(*) FROM idem.parked")
            .await?,
        "5"
    );
    Ok(())
}
