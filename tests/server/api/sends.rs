//! Tests of messages that are sent without a claim, of the time of delivery, and of the trace
//! context.

use anyhow::Result;
use idem_testkit::{Database, until};

/// A sent message is in the outbox when its transaction has committed.
#[tokio::test]
async fn sent_message_is_in_the_outbox_after_commit() -> Result<()> {
    let db = Database::with_idem("send").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    session.run("BEGIN").await?;
    let json = session
        .text(r#"SELECT idem_send('orders', '{"n": 1.0}'::jsonb)"#)
        .await?;
    let bytes = session
        .text(
            r#"SELECT idem_send_bytes('orders', '\x00ff'::bytea, key => 'k', type => 'T',
                                headers => '{"h": [1]}',
                                message_id => '0192f3a4-0000-7abc-8def-0123456789ab',
                                content_type => 'image/png')"#,
        )
        .await?;
    let plain = session
        .text("SELECT idem_send_bytes('orders', 'abc'::bytea)")
        .await?;
    assert_eq!(bytes, "0192f3a4-0000-7abc-8def-0123456789ab");
    assert_eq!(other.text("SELECT count(*) FROM idem.outbox").await?, "0");
    session.run("COMMIT").await?;
    assert_eq!(
        other
            .text(
                "SELECT message_id, topic, key, type, payload, content_type, headers,
                        source_destination
                   FROM idem_relay_next('default')"
            )
            .await?,
        format!(
            "{json}|orders|NULL|NULL|\\x7b226e223a20312e307d|application/json|NULL|NULL\n\
             {bytes}|orders|k|T|\\x00ff|image/png|{{\"h\": [1]}}|NULL\n\
             {plain}|orders|NULL|NULL|\\x616263|application/octet-stream|NULL|NULL"
        )
    );
    assert_eq!(
        json.parse::<uuid::Uuid>()?.get_version_num(),
        7,
        "a generated id is a UUID of version 7, which sorts by time"
    );

    session
        .run("BEGIN; SELECT idem_send('orders', '0'::jsonb); ROLLBACK")
        .await?;
    assert_eq!(
        other.text("SELECT count(*) FROM idem.outbox_row").await?,
        "3"
    );
    Ok(())
}

/// An effect without a `traceparent` gets the `traceparent` of its session.
#[tokio::test]
async fn effect_without_trace_has_the_trace_of_the_session() -> Result<()> {
    let db = Database::with_idem("trace").await?;
    let session = db.connect().await?;
    session
        .run(
            r#"BEGIN;
               SET LOCAL idem.traceparent = '00-of-the-session';
               SELECT idem_try_record('m1', 'orders', '[
                   {"topic": "inherits", "payload": 1},
                   {"topic": "has its own", "payload": 1, "headers": {"traceparent": "00-its-own"}},
                   {"topic": "inherits", "payload": 1, "headers": {"other": 1}}]');
               SELECT idem_send('inherits', '1'::jsonb);
               COMMIT;
               SELECT idem_send('none', '1'::jsonb);"#,
        )
        .await?;
    assert_eq!(
        session
            .text("SELECT topic, traceparent FROM idem.outbox_row ORDER BY seq")
            .await?,
        "inherits|00-of-the-session\nhas its own|00-its-own\ninherits|00-of-the-session\n\
         inherits|00-of-the-session\nnone|NULL"
    );
    Ok(())
}

/// An effect with `deliver_after` is delivered when it is due and delays no other effect.
#[tokio::test]
async fn deliver_after_delays_only_its_own_effect() -> Result<()> {
    let db = Database::with_idem("deliver_after").await?;
    let session = db.connect().await?;
    session
        .run(
            "SELECT idem_try_record('m1', 'orders', jsonb_build_array(
                 jsonb_build_object('topic', 'next year', 'payload', 1, 'deliver_after',
                     to_char(now() + '1 year', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')),
                 jsonb_build_object('topic', 'soon',  'payload', now() + '2 seconds',
                     'deliver_after',
                     to_char(now() + '2 seconds', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')),
                 jsonb_build_object('topic', 'past',  'payload', 1, 'deliver_after',
                     '2001-01-01T00:00:00Z'),
                 jsonb_build_object('topic', 'now',   'payload', 1)))",
        )
        .await?;
    let mut topics = Vec::new();
    until("every due effect is delivered", async || {
        let rows = session
            .query(
                "SELECT token, topic, topic <> 'soon' OR clock_timestamp() >=
                        (convert_from(payload, 'UTF8')::jsonb #>> '{}')::timestamptz
                   FROM idem_relay_next('default')",
                &[],
            )
            .await?;
        for row in &rows {
            let topic: String = row.get(1);
            let is_due: bool = row.get(2);
            assert!(is_due, "{topic} was delivered too early");
            topics.push(topic);
        }
        if let Some(row) = rows.first() {
            session
                .execute(
                    "SELECT idem_relay_ack('default', 0, $1)",
                    &[&row.get::<_, i64>(0)],
                )
                .await?;
        }
        Ok(topics.len() >= 3)
    })
    .await?;
    assert_eq!(topics, ["past", "now", "soon"]);
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_relay_next('default')")
            .await?,
        "0"
    );
    assert_eq!(
        session
            .text("SELECT topic, deliver_after > now() + '360 days' FROM idem.outbox")
            .await?,
        "next year|t"
    );
    Ok(())
}
