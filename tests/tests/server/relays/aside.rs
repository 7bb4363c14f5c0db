//! I4 for effects that are set aside: parked with a reason, waiting for their time, or sent once
//! more.

use anyhow::Result;
use idem_tests::harness::{Database, Session, until};

use super::reader::{Reader, send};
use super::rotation::{keep_for, maintain};

const NOTHING: [&str; 0] = [];

#[tokio::test]
async fn i4_a_parked_effect_lets_the_others_pass_and_comes_back_when_it_is_unparked() -> Result<()>
{
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
        "it is back already"
    );
    let again = relay.batch().await?;
    assert_eq!((again.says(), again.ids()), (vec!["poison"], vec![poison]));
    // It can be parked again, out of the batch that brought it back, and whose lease was extended.
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
async fn i4_what_was_parked_before_the_lease_ran_out_stays_parked() -> Result<()> {
    let db = Database::with_idem("parkdie").await?;
    let relay = Reader::of(&db, "default").await?.lease("500 milliseconds");
    for says in ["a", "poison", "c"] {
        send(&relay.session, says).await?;
    }
    let batch = relay.batch().await?;
    park(&relay.session, batch.token, batch.ids()[1]).await?;
    let heir = Reader::of(&db, "default").await?;
    let mut says = Vec::new();
    until("the lease runs out", async || {
        says = heir.drained().await?;
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
async fn i4_an_effect_comes_not_before_its_time_and_then_it_comes() -> Result<()> {
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
        "it does not wait for the other"
    );
    send(&relay.session, "next").await?;
    assert_eq!(
        relay.drained().await?,
        ["next"],
        "nor does what comes after"
    );
    let too_early = "SELECT clock_timestamp() < min(due_at) FROM idem.delayed";
    assert_eq!(
        relay.session.text(too_early).await?,
        "t",
        "so far it was not its time"
    );

    let mut late = Vec::new();
    until("its time has come", async || {
        // Whether it was due before we asked.
        let due = relay
            .session
            .text("SELECT clock_timestamp() >= min(due_at) FROM idem.delayed")
            .await?;
        late = relay.drained().await?;
        anyhow::ensure!(
            late.is_empty() || due != "f" || is_past(&relay.session, "m1").await?,
            "too early"
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

/// Its time comes between the lease and the acknowledgement: it was not in the batch, so the
/// acknowledgement is not for it.
#[tokio::test]
async fn i4_an_effect_whose_time_comes_while_its_batch_is_out_is_not_acknowledged_with_it()
-> Result<()> {
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
    until("its time has come", async || {
        is_past(&relay.session, "m1").await
    })
    .await?;
    // Nor does a longer lease change what is in the batch.
    let token = relay.extend(batch.token, "1 hour").await?;
    relay.ack(token).await?;
    assert_eq!(relay.drained().await?, ["later"]);
    Ok(())
}

#[tokio::test]
async fn i4_an_effect_that_waits_survives_the_relay_that_dies_over_its_batch() -> Result<()> {
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
        "two at most, one of them waits"
    );
    // Dies here. Its heir takes the same effects, and another limit.
    let heir = Reader::of(&db, "default").await?;
    let mut says = Vec::new();
    until("everything has come", async || {
        says.extend(heir.drained().await?);
        Ok(says.len() >= 4)
    })
    .await?;
    says.sort();
    assert_eq!(says, ["a", "b", "later", "later too"], "each once");
    assert_eq!(heir.drained().await?, NOTHING);
    Ok(())
}

/// A lease on what was set aside runs out like any other.
#[tokio::test]
async fn i4_a_delayed_effect_comes_again_when_it_was_not_acknowledged() -> Result<()> {
    let db = Database::with_idem("delayed").await?;
    let relay = Reader::of(&db, "default").await?;
    record(&relay.session, "m1", &[("later", Some("1 second"))]).await?;
    assert_eq!(relay.drained().await?, NOTHING);
    let dying = Reader::of(&db, "default").await?.lease("300 milliseconds");
    let mut first = None;
    until("its time has come", async || {
        first = dying.next().await?;
        Ok(first.is_some())
    })
    .await?;
    let first = first.expect("it came");
    // What else there is goes on after it, not instead of it.
    send(&relay.session, "other").await?;
    let mut second = None;
    until("its lease has run out", async || {
        second = relay.next().await?;
        Ok(second.is_some())
    })
    .await?;
    let second = second.expect("it came again");
    assert_eq!((second.says(), second.ids()), (vec!["later"], first.ids()));
    relay.ack(second.token).await?;
    assert_eq!(relay.drained().await?, ["other"]);
    Ok(())
}

/// What is set aside is a copy: the outbox can forget the row, and where it kept the bytes of a
/// large one.
#[tokio::test]
async fn i4_what_is_set_aside_outlives_its_place_in_the_outbox() -> Result<()> {
    let db = Database::with_idem("outlives").await?;
    let (session, keeper) = (db.connect().await?, db.connect().await?);
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
    until("the outbox has forgotten all of it", async || {
        maintain(&keeper).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await?;

    let unpark = format!("SELECT idem_relay_unpark('default', '{poison}')");
    assert_eq!(session.text(&unpark).await?, "t");
    let mut says = Vec::new();
    until("both have come", async || {
        says.extend(relay.drained().await?);
        Ok(says.len() >= 2)
    })
    .await?;
    assert_eq!(says, [large.as_str(), &large]);
    Ok(())
}

#[tokio::test]
async fn i4_what_waits_for_its_time_is_no_lag() -> Result<()> {
    let db = Database::with_idem("nolag").await?;
    let relay = Reader::of(&db, "default").await?;
    record(&relay.session, "m1", &[("tomorrow", Some("1 day"))]).await?;
    let state = "SELECT lag_messages, lag_seconds, delayed FROM idem.relays";
    assert_eq!(
        relay.session.text(state).await?,
        "0|0|0",
        "it is in the outbox"
    );
    assert_eq!(relay.drained().await?, NOTHING);
    assert_eq!(relay.session.text(state).await?, "0|0|1", "it is set aside");
    assert_eq!(
        relay
            .session
            .text("SELECT count(*) FROM idem.outbox")
            .await?,
        "1",
        "who wants to know finds it"
    );
    Ok(())
}

#[tokio::test]
async fn i3_a_replay_gives_the_same_messages_again_and_changes_no_fact() -> Result<()> {
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
        "not four"
    );
    let again = relay.drain().await?;
    let told: Vec<_> = again
        .iter()
        .map(|e| (e.message_id, e.says.as_str()))
        .collect();
    let expected: Vec<_> = first
        .iter()
        .chain(&first)
        .map(|e| (e.message_id, e.says.as_str()))
        .collect();
    assert_eq!(told, expected);
    assert!(again[0].seq > first[1].seq, "at a new place in the order");
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

/// Claims and records, each effect with how much later than now it may be delivered.
async fn record(session: &Session, id: &str, effects: &[(&str, Option<&str>)]) -> Result<()> {
    let effects: Vec<String> = effects
        .iter()
        .map(|(says, after)| {
            let after = after.map_or("NULL".to_owned(), |after| format!("now() + interval '{after}'"));
            format!(
                "jsonb_strip_nulls(jsonb_build_object('topic', 'things', 'payload', '{says}', 'deliver_after', \
                 to_char(({after})::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')))"
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

async fn is_past(session: &Session, id: &str) -> Result<bool> {
    let past = format!(
        "SELECT bool_and(deliver_after <= clock_timestamp()) FROM idem_effects('{id}', 'orders') WHERE deliver_after IS NOT NULL"
    );
    Ok(session.text(&past).await? == "t")
}
