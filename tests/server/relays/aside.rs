//! Tests of I4 for effects that are set aside: an effect is set aside when it is parked with an
//! error, delayed until it is due, or replayed.

use anyhow::Result;
use idem_testkit::{Database, Session, until};

use super::reader::{Reader, send};
use super::rotation::{keep_for, maintain};

const NOTHING: [&str; 0] = [];

#[tokio::test]
async fn i4_parked_effect_is_skipped_until_it_is_unparked() -> Result<()> {
    let db = Database::with_idem("park").await?;
    let relay = Reader::of(&db, "default").await?;
    for says in ["a", "poison", "c"] {
        send(&relay.session, says).await?;
    }
    let batch = relay.batch().await?;
    assert_eq!(batch.says(), ["a", "poison", "c"]);
    let poison = batch.ids()[1];
    park(&relay.session, batch.token, poison).await?;
    relay.ack(batch.token).await?;
    assert_eq!(relay.drained().await?, NOTHING);
    let parked = "SELECT error, message_id FROM idem.parked";
    assert_eq!(
        relay.session.text(parked).await?,
        format!("no such exchange|{poison}")
    );
    assert_eq!(
        relay.session.text("SELECT parked FROM idem.relays").await?,
        "1"
    );

    let unpark = format!("SELECT idem_relay_unpark('default', '{poison}')");
    assert_eq!(relay.session.text(&unpark).await?, "t");
    assert_eq!(
        relay.session.text(&unpark).await?,
        "f",
        "the effect is no longer parked"
    );
    let again = relay.batch().await?;
    assert_eq!((again.says(), again.ids()), (vec!["poison"], vec![poison]));
    // The effect can be parked again from the batch that redelivered it, also after the lease of
    // that batch was extended.
    let token = relay.extend(again.token, "1 hour").await?;
    park(&relay.session, token, poison).await?;
    relay.ack(token).await?;
    assert_eq!(relay.drained().await?, NOTHING);
    assert_eq!(relay.session.text(&unpark).await?, "t");
    assert_eq!(relay.drained().await?, ["poison"]);
    assert_eq!(
        relay
            .session
            .text("SELECT count(*) FROM idem.delayed")
            .await?,
        "0"
    );
    Ok(())
}

#[tokio::test]
async fn i4_parked_effect_stays_parked_after_lease_expires() -> Result<()> {
    let db = Database::with_idem("parkdie").await?;
    let relay = Reader::of(&db, "default").await?.lease("500 milliseconds");
    for says in ["a", "poison", "c"] {
        send(&relay.session, says).await?;
    }
    let batch = relay.batch().await?;
    park(&relay.session, batch.token, batch.ids()[1]).await?;
    let successor = Reader::of(&db, "default").await?;
    let mut says = Vec::new();
    until("the lease expires", async || {
        says = successor.drained().await?;
        Ok(!says.is_empty())
    })
    .await?;
    assert_eq!(says, ["a", "c"]);
    assert_eq!(
        relay
            .session
            .text("SELECT message_id FROM idem.parked")
            .await?,
        batch.ids()[1].to_string()
    );
    Ok(())
}

#[tokio::test]
async fn i4_delayed_effect_is_delivered_when_due_and_not_before() -> Result<()> {
    let db = Database::with_idem("time").await?;
    let relay = Reader::of(&db, "default").await?;
    record(
        &relay.session,
        "m1",
        &[("later", Some("1 second")), ("now", None)],
    )
    .await?;
    assert_eq!(
        relay.drained().await?,
        ["now"],
        "the effect that is due does not wait for the delayed effect"
    );
    send(&relay.session, "next").await?;
    assert_eq!(
        relay.drained().await?,
        ["next"],
        "a later effect does not wait for the delayed effect"
    );
    let too_early = "SELECT clock_timestamp() < min(due_at) FROM idem.delayed";
    assert_eq!(
        relay.session.text(too_early).await?,
        "t",
        "the delayed effect is not due yet"
    );

    let mut late = Vec::new();
    until("the delayed effect is due", async || {
        // Before the relay leases the effect, read whether the effect is due.
        let due = relay
            .session
            .text("SELECT clock_timestamp() >= min(due_at) FROM idem.delayed")
            .await?;
        late = relay.drained().await?;
        anyhow::ensure!(
            late.is_empty() || due != "f" || is_past(&relay.session, "m1").await?,
            "the effect was delivered before it was due"
        );
        Ok(!late.is_empty())
    })
    .await?;
    assert_eq!(late, ["later"]);
    assert_eq!(relay.drained().await?, NOTHING);
    assert_eq!(
        relay
            .session
            .text("SELECT count(*) FROM idem.delayed")
            .await?,
        "0"
    );
    Ok(())
}

/// I4: an effect becomes due between the lease and the acknowledgement of a batch. The effect is
/// not in this batch, so the acknowledgement does not include the effect.
#[tokio::test]
async fn i4_effect_due_after_the_lease_is_not_acknowledged() -> Result<()> {
    let db = Database::with_idem("between").await?;
    let relay = Reader::of(&db, "default").await?;
    record(
        &relay.session,
        "m1",
        &[("later", Some("1 second")), ("now", None)],
    )
    .await?;
    let batch = relay.batch().await?;
    assert_eq!(batch.says(), ["now"]);
    until("the delayed effect is due", async || {
        is_past(&relay.session, "m1").await
    })
    .await?;
    // An extension of the lease does not change the batch either.
    let token = relay.extend(batch.token, "1 hour").await?;
    relay.ack(token).await?;
    assert_eq!(relay.drained().await?, ["later"]);
    Ok(())
}

#[tokio::test]
async fn i4_delayed_effect_survives_a_relay_that_dies() -> Result<()> {
    let db = Database::with_idem("survives").await?;
    let dying = Reader::of(&db, "default")
        .await?
        .limit(2)
        .lease("1 millisecond");
    let effects = [
        ("later", Some("1 second")),
        ("a", None),
        ("b", None),
        ("later too", Some("1 second")),
    ];
    record(&dying.session, "m1", &effects).await?;
    assert_eq!(
        dying.batch().await?.says(),
        ["a"],
        "the limit is two effects, and one of them is delayed"
    );
    // The relay dies here. Its successor takes the same effects with another limit.
    let successor = Reader::of(&db, "default").await?;
    let mut says = Vec::new();
    until("all effects are delivered", async || {
        says.extend(successor.drained().await?);
        Ok(says.len() >= 4)
    })
    .await?;
    says.sort();
    assert_eq!(
        says,
        ["a", "b", "later", "later too"],
        "each effect is delivered once"
    );
    assert_eq!(successor.drained().await?, NOTHING);
    Ok(())
}

/// I4: a lease on a delayed effect expires like any other lease.
#[tokio::test]
async fn i4_unacknowledged_delayed_effect_is_redelivered() -> Result<()> {
    let db = Database::with_idem("delayed").await?;
    let relay = Reader::of(&db, "default").await?;
    record(&relay.session, "m1", &[("later", Some("1 second"))]).await?;
    assert_eq!(relay.drained().await?, NOTHING);
    let dying = Reader::of(&db, "default").await?.lease("300 milliseconds");
    let mut first = None;
    until("the delayed effect is due", async || {
        first = dying.next().await?;
        Ok(first.is_some())
    })
    .await?;
    let first = first.expect("the delayed effect was delivered");
    // The effect `other` is delivered after the delayed effect and not instead of it.
    send(&relay.session, "other").await?;
    let mut second = None;
    until("the lease of the delayed effect has expired", async || {
        second = relay.next().await?;
        Ok(second.is_some())
    })
    .await?;
    let second = second.expect("the delayed effect was redelivered");
    assert_eq!((second.says(), second.ids()), (vec!["later"], first.ids()));
    relay.ack(second.token).await?;
    assert_eq!(relay.drained().await?, ["other"]);
    Ok(())
}

/// I4: an effect that is set aside is a copy, which includes the bytes of a large payload. The
/// effect is delivered although the outbox has forgotten the original row.
#[tokio::test]
async fn i4_effect_set_aside_outlives_its_outbox_row() -> Result<()> {
    let db = Database::with_idem("outlives").await?;
    let (session, maintainer) = (db.connect().await?, db.connect().await?);
    let relay = Reader::of(&db, "default").await?;
    keep_for(&session, "100 milliseconds").await?;
    let large = session
        .text("SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n")
        .await?;
    record(
        &session,
        "m1",
        &[(&large, Some("2 seconds")), ("poison", None)],
    )
    .await?;
    let poison = send(&session, &large).await?;
    let batch = relay.batch().await?;
    assert_eq!(batch.says(), ["poison", &large]);
    park(&session, batch.token, poison).await?;
    relay.ack(batch.token).await?;
    until("the outbox has forgotten every effect", async || {
        maintain(&maintainer).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await?;

    let unpark = format!("SELECT idem_relay_unpark('default', '{poison}')");
    assert_eq!(session.text(&unpark).await?, "t");
    let mut says = Vec::new();
    until("both effects are delivered", async || {
        says.extend(relay.drained().await?);
        Ok(says.len() >= 2)
    })
    .await?;
    assert_eq!(says, [large.as_str(), &large]);
    Ok(())
}

#[tokio::test]
async fn i4_delayed_effect_does_not_count_as_lag() -> Result<()> {
    let db = Database::with_idem("nolag").await?;
    let relay = Reader::of(&db, "default").await?;
    record(&relay.session, "m1", &[("tomorrow", Some("1 day"))]).await?;
    let state = "SELECT lag_messages, lag_seconds, delayed FROM idem.relays";
    assert_eq!(
        relay.session.text(state).await?,
        "0|0|0",
        "the effect is in the outbox"
    );
    assert_eq!(relay.drained().await?, NOTHING);
    assert_eq!(
        relay.session.text(state).await?,
        "0|0|1",
        "the effect is set aside"
    );
    assert_eq!(
        relay
            .session
            .text("SELECT count(*) FROM idem.outbox")
            .await?,
        "1",
        "the view idem.outbox shows the effect"
    );
    Ok(())
}

#[tokio::test]
async fn i3_replay_sends_the_same_messages_and_changes_no_fact() -> Result<()> {
    let db = Database::with_idem("replay").await?;
    let relay = Reader::of(&db, "default").await?;
    record(&relay.session, "m1", &[("a", None), ("b", None)]).await?;
    let first = relay.drain().await?;
    let facts = "SELECT * FROM idem_effects('m1', 'orders')";
    let before = relay.session.text(facts).await?;
    assert_eq!(
        relay
            .session
            .text("SELECT idem_replay_effects('m1', 'orders')")
            .await?,
        "2"
    );
    assert_eq!(
        relay
            .session
            .text("SELECT idem_replay_effects('m1', 'orders')")
            .await?,
        "2",
        "the second replay does not count replayed effects"
    );
    let again = relay.drain().await?;
    let replayed: Vec<_> = again
        .iter()
        .map(|e| (e.message_id, e.says.as_str()))
        .collect();
    let expected: Vec<_> = first
        .iter()
        .chain(&first)
        .map(|e| (e.message_id, e.says.as_str()))
        .collect();
    assert_eq!(replayed, expected);
    assert!(
        again[0].seq > first[1].seq,
        "the replayed effects have new numbers"
    );
    assert_eq!(relay.session.text(facts).await?, before);
    Ok(())
}

async fn park(session: &Session, token: i64, message: uuid::Uuid) -> Result<()> {
    session
        .run(&format!(
            "SELECT idem_relay_park('default', 0, {token}, '{message}', 'no such exchange')"
        ))
        .await
}

/// Claims the message and records effects. Each effect has a text and, optionally, the time from
/// now on before which it must not be delivered.
async fn record(session: &Session, id: &str, effects: &[(&str, Option<&str>)]) -> Result<()> {
    let effects: Vec<String> = effects
        .iter()
        .map(|(says, after)| {
            let after = after.map_or("NULL".to_owned(), |after| {
                format!("now() + interval '{after}'")
            });
            format!(
                "jsonb_strip_nulls(jsonb_build_object('topic', 'things', 'payload', '{says}', \
                 'deliver_after', to_char(({after})::timestamptz AT TIME ZONE 'UTC', \
                                          'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')))"
            )
        })
        .collect();
    let sql = format!(
        "SELECT idem_try_record('{id}', 'orders', jsonb_build_array({}))",
        effects.join(", ")
    );
    assert_eq!(session.text(&sql).await?, "t");
    Ok(())
}

/// Returns true when all delayed effects of the message are due.
async fn is_past(session: &Session, id: &str) -> Result<bool> {
    let past = format!(
        "SELECT bool_and(deliver_after <= clock_timestamp()) FROM idem_effects('{id}', 'orders') \
         WHERE deliver_after IS NOT NULL"
    );
    Ok(session.text(&past).await? == "t")
}
