//! Tests of `idem_hand_over`, which moves effects from the outbox to the inbox: each effect arrives
//! exactly once, however many relays run at the same time.

use std::sync::Arc;

use anyhow::Result;
use idem_testkit::{Database, Session};
use tokio::task::JoinSet;

use super::{ids, next};

async fn send(session: &Session, says: &str) -> Result<()> {
    session
        .run(&format!(
            "SELECT idem_send('mail', '\"{says}\"'::jsonb, key => 'k{says}', type => 'T', \
             headers => '{{\"h\": 1}}')"
        ))
        .await
}

/// Every role can set a trace context that is too long for the inbox. The hand-over drops such a
/// trace context and delivers the effect without it.
#[tokio::test]
async fn too_long_trace_context_stops_no_relay() -> Result<()> {
    let db = Database::with_idem("long_trace").await?;
    let session = db.connect().await?;
    session
        .run("SELECT set_config('idem.traceparent', repeat('t', 300), false)")
        .await?;
    send(&session, "a").await?;
    assert_eq!(
        session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "1"
    );
    let handed = "SELECT key, traceparent IS NULL FROM idem_next('mail')";
    assert_eq!(session.text(handed).await?, "ka|t");
    Ok(())
}

#[tokio::test]
async fn effect_is_received_by_the_destination_named_as_topic() -> Result<()> {
    let db = Database::with_idem("topics").await?;
    let session = db.connect().await?;
    send(&session, "a").await?;
    session
        .run("SELECT idem_send('elsewhere', '1'::jsonb)")
        .await?;
    send(&session, "b").await?;
    assert_eq!(
        session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "3"
    );
    assert_eq!(
        session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "0"
    );
    let row = "SELECT m.id = e.message_id::text, m.key, m.type, m.headers, \
               convert_from(m.payload, 'UTF8'), m.content_type, d.name \
               FROM idem_next('mail', 10) m JOIN idem.outbox_row e ON e.payload = m.payload, \
               idem.destination d ORDER BY m.seq";
    assert_eq!(
        session.text(row).await?,
        "t|ka|T|{\"h\": 1}|\"a\"|application/json|mail\n\
         t|kb|T|{\"h\": 1}|\"b\"|application/json|mail"
    );
    assert_eq!(
        session.text("SELECT lag_messages FROM idem.relays").await?,
        "0",
        "all effects are acknowledged"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_relays_hand_over_each_effect_once() -> Result<()> {
    const EFFECTS: usize = 300;
    let db = Arc::new(Database::with_idem("handed").await?);
    let session = db.connect().await?;
    session
        .run("SELECT idem_create_relay('second', from_oldest => true)")
        .await?;
    let mut racers = JoinSet::new();
    for relay in ["default", "default", "second", "second"] {
        let session = db.connect().await?;
        racers.spawn(async move {
            let mut handed = 0;
            while handed < EFFECTS {
                // Two processes of a relay share its effects, so a process hands over only a part
                // of them. It ends when all effects are sent and its relay has no lag.
                let done = format!("SELECT lag_messages FROM idem.relays WHERE relay = '{relay}'");
                handed += session
                    .text(&format!(
                        "SELECT idem_hand_over('{relay}', '{{mail}}', 0, 7)"
                    ))
                    .await?
                    .parse::<usize>()?;
                let all = session.text("SELECT count(*) FROM idem.outbox_row").await?
                    == EFFECTS.to_string();
                if all && session.text(&done).await? == "0" {
                    break;
                }
            }
            anyhow::Ok(())
        });
    }
    for n in 0..EFFECTS {
        send(&session, &n.to_string()).await?;
    }
    while let Some(racer) = racers.join_next().await {
        racer??;
    }
    assert_eq!(
        session
            .text("SELECT count(*), count(DISTINCT key) FROM idem.pending")
            .await?,
        format!("{EFFECTS}|{EFFECTS}"),
        "each effect is one message, although two relays read it"
    );
    Ok(())
}

/// A hand-over leases, receives and acknowledges effects in one transaction. A crash before the
/// commit hands over nothing, and the next hand-over delivers all effects.
#[tokio::test]
async fn crash_during_hand_over_hands_over_nothing() -> Result<()> {
    let db = Database::with_idem("crash").await?;
    let (session, victim) = (db.connect().await?, db.connect().await?);
    for says in ["a", "b", "c"] {
        send(&session, says).await?;
    }
    victim.run("BEGIN").await?;
    assert_eq!(
        victim
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "3"
    );
    let pid = victim.pid().await?;
    assert_eq!(
        session
            .text(&format!("SELECT pg_terminate_backend({pid}, 5000)"))
            .await?,
        "t"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_next('mail', 10)")
            .await?,
        "0"
    );
    assert_eq!(
        session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "3",
        "at once, because the lease was not committed"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_next('mail', 10)")
            .await?,
        "3"
    );
    assert_eq!(ids(&next(&session, 10).await?), [""; 0]);
    Ok(())
}

/// A hand-over skips effects that are not due yet, and messages that are handled already.
#[tokio::test]
async fn hand_over_waits_until_due_and_skips_handled_messages() -> Result<()> {
    let db = Database::with_idem("later").await?;
    let session = db.connect().await?;
    session
        .run(
            "DO $$ BEGIN PERFORM idem_try_claim('src', 'orders'); \
             PERFORM idem_record_effects('src', 'orders', format( \
             '[{\"topic\": \"mail\", \"payload\": 1, \"deliver_after\": \"%s\"}]', \
             to_json(clock_timestamp() + interval '1 hour') #>> '{}')::jsonb); END $$",
        )
        .await?;
    let handled = session.text("SELECT idem_send('mail', '2'::jsonb)").await?;
    session
        .run(&format!("SELECT idem_try_claim('{handled}', 'mail')"))
        .await?;
    assert_eq!(
        session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "1"
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0"
    );
    session
        .run("UPDATE idem.delayed SET due_at = clock_timestamp()")
        .await?;
    assert_eq!(
        session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "1"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_next('mail', 10)")
            .await?,
        "1"
    );
    Ok(())
}
