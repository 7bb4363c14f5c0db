//! I2 and I3 without concurrency: effects commit with their claim and are returned unchanged.

use std::collections::HashSet;

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, FIX_INSTALLATION, Session};
use uuid::Uuid;

const NOTHING: &str = "0";
const IN_OUTBOX: &str = "SELECT count(*) FROM idem.outbox_row";

/// I3: `idem_effects` returns every member of an effect unchanged.
#[tokio::test]
async fn i3_every_member_is_returned_unchanged() -> Result<()> {
    let db = Database::with_idem("members").await?;
    let session = db.connect().await?;
    session
        .run(
            r#"BEGIN;
               SELECT idem_try_claim('m1', 'orders');
               SELECT idem_record_effects('m1', 'orders', '[
                   {"topic": "least", "payload": null},
                   {"topic": "most", "payload_base64": "AP8K", "content_type": "image/png",
                    "key": "k 1", "type": "Drawn",
                    "headers": {"a": 1, "traceparent":
                        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
                    "message_id": "0192f3a4-0000-7abc-8def-0123456789ab",
                    "deliver_after": "2030-01-31T12:00:00.25+01:00"},
                   {"topic": "numbers",
                    "payload": {"n": 1.50, "m": 12345678901234567890.0, "s": "\u00e9\n"}}]');
               COMMIT"#,
        )
        .await?;
    assert_eq!(
        session
            .text(
                "SELECT ordinal, topic, key, type, encode(payload, 'escape'), content_type, headers,
                        traceparent,
                        deliver_after AT TIME ZONE 'UTC',
                        recorded_at = (SELECT claimed_at FROM idem.inbox)
                   FROM idem_effects('m1', 'orders')"
            )
            .await?,
        [
            r"0|least|NULL|NULL|null|application/json|NULL|NULL|NULL|t",
            r#"1|most|k 1|Drawn|\000\377"#,
            "|image/png|{\"a\": 1, \"traceparent\": \
             \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}|\
             00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01|2030-01-31 11:00:00.25|t",
            "2|numbers|NULL|NULL|\
             {\"m\": 12345678901234567890.0, \"n\": 1.50, \"s\": \"\\303\\251\\\\n\"}|\
             application/json|NULL|NULL|NULL|t",
        ]
        .join("\n")
    );
    assert_eq!(
        session
            .text("SELECT message_id FROM idem_effects('m1', 'orders') WHERE ordinal = 1")
            .await?,
        "0192f3a4-0000-7abc-8def-0123456789ab",
        "the message id is the one that the caller gave"
    );
    assert_eq!(
        session
            .text(
                "SELECT count(*) FROM (SELECT idem_effects('m1', 'billing')
                     UNION ALL SELECT idem_effects('m2', 'orders')) nothing"
            )
            .await?,
        NOTHING
    );
    Ok(())
}

/// I3: the message id of an effect is derived from the destination, the id and the ordinal.
#[tokio::test]
async fn i3_message_ids_depend_on_destination_id_and_ordinal() -> Result<()> {
    let effects = r#"[{"topic": "t", "payload": 1}, {"topic": "t", "payload": 2}]"#;
    let record = async |db: &Database, id: &str, destination: &str| -> Result<Vec<Uuid>> {
        let session = db.connect().await?;
        session.run("BEGIN").await?;
        assert_eq!(
            session
                .text(&format!("SELECT idem_try_claim('{id}', '{destination}')"))
                .await?,
            "t"
        );
        let sql = format!("SELECT idem_record_effects('{id}', '{destination}', '{effects}')");
        let ids: Vec<Uuid> = session.query_one(&sql, &[]).await?.get(0);
        session.run("COMMIT").await?;
        let recorded = format!(
            "SELECT array_agg(message_id ORDER BY ordinal)
               FROM idem_effects('{id}', '{destination}')"
        );
        assert_eq!(
            session
                .query_one(&recorded, &[])
                .await?
                .get::<_, Vec<Uuid>>(0),
            ids
        );
        Ok(ids)
    };
    let (here, there) = (
        Database::with_idem("ids_here").await?,
        Database::with_idem("ids_there").await?,
    );
    // The second database is a copy of the same installation. The destination has a different
    // number in it, and the message ids must not depend on this number.
    let copy = there.connect().await?;
    for session in [&copy, &here.connect().await?] {
        session.run(FIX_INSTALLATION).await?;
    }
    copy.run("SELECT idem_try_claim('x', 'another')").await?;
    let ids = record(&here, "m1", "orders").await?;
    assert_eq!(
        ids,
        record(&there, "m1", "orders").await?,
        "both databases derive the same ids"
    );
    let mut all: HashSet<Uuid> = ids.into_iter().collect();
    all.extend(record(&here, "m2", "orders").await?);
    all.extend(record(&here, "m1", "billing").await?);
    assert_eq!(
        all.len(),
        6,
        "other messages and destinations have other ids"
    );
    assert!(all.iter().all(|id| id.get_version_num() == 8), "{all:?}");
    Ok(())
}

/// I3: recording effects again in the same transaction appends to the effects of the message.
#[tokio::test]
async fn i3_second_recording_appends_effects() -> Result<()> {
    let db = Database::with_idem("twice").await?;
    let session = db.connect().await?;
    session
        .run(
            r#"BEGIN;
               SELECT idem_try_claim('m1', 'orders');
               SELECT idem_record_effects('m1', 'orders',
                   '[{"topic": "a", "payload": 1}, {"topic": "b", "payload": 2}]');
               SELECT idem_record_effects('m1', 'orders', '[]');
               SAVEPOINT s;
               SELECT idem_record_effects('m1', 'orders', '{"topic": "rolled back", "payload": 0}');
               ROLLBACK TO SAVEPOINT s;
               SELECT idem_record_effects('m1', 'orders', '{"topic": "c", "payload": 3}');
               COMMIT"#,
        )
        .await?;
    assert_eq!(
        session
            .text("SELECT ordinal, topic FROM idem_effects('m1', 'orders')")
            .await?,
        "0|a\n1|b\n2|c"
    );
    assert_eq!(
        session
            .text("SELECT count(DISTINCT message_id), count(*) FROM idem.outbox_row")
            .await?,
        "3|3"
    );
    Ok(())
}

/// I2, I3: `idem_record_effects_batch` records the same effects with the same message ids as
/// `idem_record_effects` for each message, in the order of the messages. 300 messages are more than
/// a transaction keeps in memory. The last id is a UUID.
#[tokio::test]
async fn i3_batch_records_what_single_calls_record() -> Result<()> {
    let db = Database::with_idem("record_batch").await?;
    let session = db.connect().await?;
    session
        .run(
            "CREATE TABLE message AS
             SELECT n, CASE n WHEN 300 THEN '0192f3a4-0000-7abc-8def-0123456789ab'
                              ELSE 'm ' || n END AS id,
                    (SELECT coalesce(jsonb_agg(jsonb_build_object('topic', 't' || e, 'payload', n)),
                                     '[]')
                       FROM generate_series(1, n % 3) AS e) AS effects
               FROM generate_series(1, 300) AS n",
        )
        .await?;
    const CLAIM: &str =
        "BEGIN; SELECT idem_try_claim_batch(array_agg(id ORDER BY n), 'd') FROM message";
    const EFFECTS: &str = "SELECT string_agg(e::text, ';' ORDER BY n, ordinal), count(*)
         FROM message, LATERAL (SELECT ordinal, message_id, topic, payload
                                  FROM idem_effects(id, 'd')) AS e";
    session.run(CLAIM).await?;
    let ids = "SELECT array_agg(one ORDER BY n, nr) FROM message,
                   unnest(idem_record_effects(id, 'd', effects)) WITH ORDINALITY AS e (one, nr)";
    let single = (session.text(ids).await?, session.text(EFFECTS).await?);
    session.run("ROLLBACK").await?;
    session.run(CLAIM).await?;
    let ids = "SELECT idem_record_effects_batch(array_agg(id ORDER BY n), 'd',
                                                jsonb_agg(effects ORDER BY n)) FROM message";
    let batch = (session.text(ids).await?, session.text(EFFECTS).await?);
    session.run("COMMIT").await?;
    assert_eq!(batch, single);
    assert!(batch.1.ends_with("|300"), "{}", batch.1);
    Ok(())
}

/// I2, I3: an id that is twice in the batch gets both lists, in order. If a message has no claim in
/// this transaction, no effect of the batch is recorded.
#[tokio::test]
async fn i2_batch_with_a_message_without_a_claim_records_nothing() -> Result<()> {
    let db = Database::with_idem("record_batch_fails").await?;
    let session = db.connect().await?;
    let effect = |topic: &str| format!(r#"{{"topic": "{topic}", "payload": 1}}"#);
    session
        .run("BEGIN; SELECT idem_try_claim('a', 'd'), idem_try_claim('b', 'd')")
        .await?;
    let twice = format!(
        "SELECT cardinality(idem_record_effects_batch('{{a,b,a}}', 'd', '[[{}], {}, [{}, {}]]'))",
        effect("1"),
        effect("2"),
        effect("3"),
        effect("4"),
    );
    assert_eq!(session.text(&twice).await?, "4");
    session.run("COMMIT").await?;
    let topics = "SELECT string_agg(topic, ',' ORDER BY ordinal), max(ordinal)
                    FROM idem_effects('a', 'd')";
    assert_eq!(session.text(topics).await?, "1,3,4|2");

    let one = effect("never");
    for (ids, effects, sqlstate) in [
        ("{c,a}", format!("[[{one}], [{one}]]"), "55000"),
        ("{c,e}", format!("[[{one}], [{one}]]"), "55000"),
        ("{c,NULL}", format!("[[{one}], [{one}]]"), "22004"),
        ("{c,\"\"}", format!("[[{one}], [{one}]]"), "22023"),
        ("{c}", format!("[[{one}], [{one}]]"), "22023"),
        ("{c,c}", format!("[[{one}]]"), "22023"),
        ("{c}", one.clone(), "22023"),
        ("{c}", "[1]".into(), "22023"),
    ] {
        session
            .run("BEGIN; SELECT idem_try_claim('c', 'd'); SAVEPOINT s")
            .await?;
        let sql = format!("SELECT idem_record_effects_batch('{ids}', 'd', '{effects}')");
        let refusal = session.refused(&sql).await?;
        assert_eq!(refusal.sqlstate, sqlstate, "{sql}: {refusal:?}");
        let has_hint = sqlstate != "22004";
        assert_eq!(!refusal.hint.is_empty(), has_hint, "{sql}: {refusal:?}");
        session.run("ROLLBACK TO SAVEPOINT s").await?;
        let recorded = "SELECT count(*) FROM idem.outbox_row WHERE topic = 'never'";
        assert_eq!(session.text(recorded).await?, NOTHING, "{sql}");
        session.run("ROLLBACK").await?;
    }
    Ok(())
}

/// I2: `idem_record_effects` fails with 55000 unless the same transaction has claimed the message.
#[tokio::test]
async fn i2_effects_need_the_claim_in_the_same_transaction() -> Result<()> {
    let db = Database::with_idem("claim_needed").await?;
    let session = db.connect().await?;
    let record = r#"SELECT idem_record_effects('m1', 'orders', '{"topic": "t", "payload": 1}')"#;
    assert_eq!(
        session.refused(record).await?.sqlstate,
        "55000",
        "never claimed"
    );

    session
        .run("BEGIN; SAVEPOINT s; SELECT idem_try_claim('m1', 'orders'); ROLLBACK TO SAVEPOINT s")
        .await?;
    assert_eq!(
        session.refused(record).await?.sqlstate,
        "55000",
        "claimed and rolled back"
    );
    session.run("ROLLBACK").await?;

    session
        .run("BEGIN; SELECT idem_try_claim('m1', 'billing')")
        .await?;
    assert_eq!(
        session.refused(record).await?.sqlstate,
        "55000",
        "claimed for another destination"
    );
    session
        .run("ROLLBACK; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    assert_eq!(
        session.refused(record).await?.sqlstate,
        "55000",
        "claimed by an earlier transaction"
    );
    assert_eq!(session.text(IN_OUTBOX).await?, NOTHING);
    Ok(())
}

/// I2: the end of a transaction, however it ends, also ends what the backend remembers of it. An
/// error that is caught ends what was done since the beginning of its block.
#[tokio::test]
async fn i2_effects_need_the_claim_after_each_kind_of_end() -> Result<()> {
    let server = Cluster::builder(&Install::from_env()?)
        .name("remembered")
        .setting("max_prepared_transactions", "2")
        .start()?;
    let session = Session::in_database_with_idem(&server, "app").await?;
    session
        .run(
            "CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM idem_try_claim('m1', 'orders'); COMMIT; END $$;
             CREATE FUNCTION catches() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM idem_try_claim('m1', 'orders'); RAISE 'no'; EXCEPTION WHEN OTHERS THEN
             END $$",
        )
        .await?;
    let claim = "SELECT idem_try_claim('m1', 'orders')";
    for end in [
        format!("BEGIN; {claim}; COMMIT"),
        format!("BEGIN; {claim}; ROLLBACK"),
        format!("BEGIN; {claim}; PREPARE TRANSACTION 'p'"),
        "CALL commits()".to_owned(),
        "BEGIN; SELECT catches()".to_owned(),
        format!("BEGIN; {claim}; DROP EXTENSION idem; CREATE EXTENSION idem"),
    ] {
        session.run(&end).await?;
        session.run("BEGIN").await?;
        // The destination exists again after a rollback or a reinstallation.
        session
            .run("SELECT idem_try_claim('other', 'orders')")
            .await?;
        let record =
            r#"SELECT idem_record_effects('m1', 'orders', '{"topic": "t", "payload": 1}')"#;
        assert_eq!(session.refused(record).await?.sqlstate, "55000", "{end}");
        session.run("ROLLBACK").await?;
        if end.contains("PREPARE") {
            session.run("ROLLBACK PREPARED 'p'").await?;
        }
        session.run("SELECT idem_forget('m1', 'orders')").await?;
    }
    Ok(())
}

/// I3: an error that is caught takes its effects with it, and the next effect has their ordinal.
#[tokio::test]
async fn i3_caught_error_takes_its_ordinals_with_it() -> Result<()> {
    let db = Database::with_idem("caught").await?;
    let session = db.connect().await?;
    session
        .run(
            r#"CREATE FUNCTION fails() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                   PERFORM idem_record_effects('m1', 'orders', '{"topic": "no", "payload": 0}');
                   RAISE 'no'; EXCEPTION WHEN OTHERS THEN END $$;
               BEGIN;
               SELECT idem_try_record('m1', 'orders', '{"topic": "a", "payload": 1}');
               SELECT fails();
               SELECT idem_record_effects('m1', 'orders', '{"topic": "b", "payload": 2}');
               COMMIT"#,
        )
        .await?;
    assert_eq!(
        session
            .text("SELECT ordinal, topic FROM idem_effects('m1', 'orders')")
            .await?,
        "0|a\n1|b"
    );
    Ok(())
}

/// I2, I3: a backend remembers a limited number of its claims. Each claim of a batch that has more
/// gets its effects, also in a second recording.
#[tokio::test]
async fn i3_effects_of_each_claim_of_a_large_batch_are_recorded() -> Result<()> {
    let db = Database::with_idem("large_batch").await?;
    let session = db.connect().await?;
    session
        .run(
            r#"BEGIN;
               SELECT idem_try_claim_batch(array_agg('m' || n), 'orders')
                 FROM generate_series(1, 600) n;
               SELECT idem_record_effects('m' || n, 'orders', '{"topic": "t", "payload": 1}')
                 FROM generate_series(1, 600) n;
               SELECT idem_record_effects('m' || n, 'orders', '{"topic": "t", "payload": 2}')
                 FROM generate_series(600, 1, -1) n;
               COMMIT"#,
        )
        .await?;
    let wrong = "SELECT count(*) FROM generate_series(1, 600) n
                  WHERE (SELECT array_agg(ordinal || ':' || convert_from(payload, 'UTF8'))
                           FROM idem_effects('m' || n, 'orders'))
                        IS DISTINCT FROM '{0:1,1:2}'";
    assert_eq!(session.text(wrong).await?, "0");
    Ok(())
}

/// I2: the claim, the business writes and the effects become visible at the same commit, or never.
#[tokio::test]
async fn i2_claim_business_and_effects_commit_together() -> Result<()> {
    let db = Database::with_idem("together").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    session.run("CREATE TABLE business (n int)").await?;
    let work = r#"BEGIN;
        SELECT idem_try_record('m1', 'orders', '{"topic": "t", "payload": 1}');
        INSERT INTO business VALUES (1)"#;
    let seen = "SELECT idem_is_claimed('m1', 'orders'), (SELECT count(*) FROM business),
                       (SELECT count(*) FROM idem_effects('m1', 'orders')),
                       (SELECT count(*) FROM idem.outbox)";
    session.run(work).await?;
    assert_eq!(other.text(seen).await?, "f|0|0|0");
    session.run("ROLLBACK").await?;
    assert_eq!(other.text(seen).await?, "f|0|0|0");
    session.run(work).await?;
    session.run("COMMIT").await?;
    assert_eq!(other.text(seen).await?, "t|1|1|1");
    Ok(())
}

/// I3: `idem_try_record` of a duplicate returns false and records no effect.
#[tokio::test]
async fn i3_try_record_of_a_duplicate_records_nothing() -> Result<()> {
    let db = Database::with_idem("try_record").await?;
    let session = db.connect().await?;
    for (payload, claimed) in [("1", "t"), ("2", "f")] {
        let sql = format!(
            r#"SELECT idem_try_record('m1', 'orders', '[{{"topic": "t", "payload": {payload}}}]')"#
        );
        assert_eq!(session.text(&sql).await?, claimed);
    }
    let uuid = "'0192f3a4-0000-7abc-8def-0123456789ab'::uuid";
    for claimed in ["t", "f"] {
        let sql = format!(
            r#"SELECT idem_try_record({uuid}, 'orders', '{{"topic": "u", "payload": 1}}')"#
        );
        assert_eq!(session.text(&sql).await?, claimed);
    }
    assert_eq!(
        session
            .text("SELECT topic, convert_from(payload, 'UTF8') FROM idem.outbox_row ORDER BY seq")
            .await?,
        "t|1\nu|1"
    );
    Ok(())
}

/// I3: a replay sends the same messages again and does not change the recorded effects.
#[tokio::test]
async fn i3_replay_sends_the_same_messages_again() -> Result<()> {
    let db = Database::with_idem("replay").await?;
    let session = db.connect().await?;
    session
        .run(
            r#"SELECT idem_try_record('m1', 'orders',
                   '[{"topic": "a", "payload": {"n": 1.0}}, {"topic": "b", "payload": 2}]')"#,
        )
        .await?;
    let facts = "SELECT * FROM idem_effects('m1', 'orders')";
    let before = session.text(facts).await?;
    let next =
        "SELECT message_id, topic, payload, source_destination FROM idem_relay_next('default')";
    let first = session.text(next).await?;
    assert_eq!(first.lines().count(), 2);
    let ack = "SELECT idem_relay_ack('default', 0, (SELECT max(pos) FROM idem.progress))";
    session.run(ack).await?;
    assert_eq!(session.text(next).await?, "");

    assert_eq!(
        session
            .text("SELECT idem_replay_effects('m1', 'orders')")
            .await?,
        "2"
    );
    assert_eq!(
        session
            .text("SELECT topic, replay, source_destination FROM idem.outbox ORDER BY seq")
            .await?,
        "a|t|orders\nb|t|orders"
    );
    assert_eq!(
        session.text(next).await?,
        first,
        "the same ids, order and bytes"
    );
    session.run(ack).await?;
    assert_eq!(session.text(facts).await?, before);
    assert_eq!(
        session
            .text("SELECT idem_replay_effects('m1', 'orders')")
            .await?,
        "2",
        "a second replay does not include the effects of the first replay"
    );
    assert_eq!(
        session
            .text("SELECT idem_replay_effects('unknown', 'orders')")
            .await?,
        "0"
    );
    assert_eq!(
        session
            .text("SELECT idem_replay_effects('m1', 'unknown')")
            .await?,
        "0"
    );
    Ok(())
}

/// I3: payloads that are stored out of line are returned unchanged.
#[tokio::test]
async fn i3_large_payloads_are_returned_unchanged() -> Result<()> {
    let db = Database::with_idem("large").await?;
    let session = db.connect().await?;
    // The text does not compress well, so it is stored out of line.
    session
        .run(
            "CREATE TABLE sent AS SELECT string_agg(md5(n::text), '') AS text
               FROM generate_series(1, 40000) n",
        )
        .await?;
    session
        .run(
            "SELECT idem_try_record('m1', 'orders', jsonb_build_array(
                 jsonb_build_object('topic', 't', 'payload', text),
                 jsonb_build_object('topic', 't', 'payload_base64',
                     translate(encode(text::bytea, 'base64'), E'\\n', '')))) FROM sent",
        )
        .await?;
    assert_eq!(
        session
            .text(
                "SELECT ordinal, payload = CASE ordinal WHEN 0 THEN to_json(text)::text::bytea
                                              ELSE text::bytea END
                   FROM sent, idem_effects('m1', 'orders')"
            )
            .await?,
        "0|t\n1|t"
    );
    assert_eq!(
        session
            .text("SELECT idem_replay_effects('m1', 'orders')")
            .await?,
        "2"
    );
    assert_eq!(
        session
            .text("SELECT count(DISTINCT md5(payload)), count(*) FROM idem.outbox_row")
            .await?,
        "2|4"
    );
    Ok(())
}

/// I3: a message is claimed, forgotten and claimed again in one query string, so both transactions
/// have the same `now()`. The message has only the effects of its second execution.
#[tokio::test]
async fn i3_execution_after_idem_forget_has_its_own_effects() -> Result<()> {
    let db = Database::with_idem("again").await?;
    let session = db.connect().await?;
    let record = |topic: &str| {
        format!(
            r#"SELECT cardinality(idem_record_effects('m', 'orders',
                   '[{{"topic": "{topic}", "payload": 1}}]'))"#
        )
    };
    let facts = "SELECT ordinal, topic FROM idem_effects('m', 'orders')";
    session
        .run(&format!(
            "BEGIN; SELECT idem_try_claim('m', 'orders'); {first}; COMMIT;
             BEGIN; SELECT idem_forget('m', 'orders'), idem_try_claim('m', 'orders'); {second};
             {third}; COMMIT",
            first = record("first"),
            second = record("second"),
            third = record("third"),
        ))
        .await?;
    assert_eq!(session.text(facts).await?, "0|second\n1|third");

    // Effects of a rolled back savepoint do not belong to the claim that follows the rollback.
    session
        .run(&format!(
            "BEGIN; SELECT idem_forget('m', 'orders'); SAVEPOINT s;
             SELECT idem_try_claim('m', 'orders'); {}; ROLLBACK TO s;
             SELECT idem_try_claim('m', 'orders'); {}; COMMIT",
            record("rolled back"),
            record("kept"),
        ))
        .await?;
    assert_eq!(session.text(facts).await?, "0|kept");
    Ok(())
}

/// I2: after a wraparound of transaction ids a frozen claim can carry the id of the current
/// transaction. It is an old claim, so no effect is recorded with it. COPY FREEZE writes such a
/// row.
#[tokio::test]
async fn i2_frozen_claim_with_the_current_xid_is_not_own() -> Result<()> {
    let db = Database::without_worker("frozen_claim").await?;
    let session = db.connect().await?;
    let claim = "BEGIN; SELECT idem_try_claim('0192f3a4-0000-7abc-8def-0123456789ab', 'work'); \
                 COMMIT";
    session.run(claim).await?;
    let destination = session.text("SELECT id FROM idem.destination").await?;
    let row = format!("0192f3a4-0000-7abc-8def-0123456789ab\\t2026-01-01\\t{destination}");
    session
        .run(
            "ALTER TABLE idem.inbox_standard_0 DISABLE TRIGGER note_load;
             BEGIN; TRUNCATE idem.inbox_standard_0",
        )
        .await?;
    session
        .run(&format!(
            "COPY idem.inbox_standard_0 (key, claimed_at, destination) \
             FROM PROGRAM 'printf \"{row}\\n\"' WITH (FREEZE)"
        ))
        .await?;
    let raw_xmin = "SELECT xmin = pg_current_xact_id()::xid FROM idem.inbox_standard_0";
    assert_eq!(
        session.text(raw_xmin).await?,
        "t",
        "the row has the current xid"
    );
    let refused = session
        .refused(
            "SELECT idem_record_effects('0192f3a4-0000-7abc-8def-0123456789ab', 'work', \
                                        '{\"topic\": \"t\", \"payload\": 1}')",
        )
        .await?;
    assert_eq!(refused.sqlstate, "55000", "{refused:?}");
    Ok(())
}
