//! What other tools do to the tables of idem (I12): triggers of others, and commands that rewrite
//! tables.

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session};

/// The tables that functions of idem write without the executor's plan, each with a statement that
/// writes it.
const WRITTEN: &[(&str, &str)] = &[
    ("inbox_standard_0", "SELECT idem_try_claim('n', 'orders')"),
    (
        "inbox_standard_0",
        "SELECT idem_try_claim_batch(ARRAY(SELECT 'b' || n FROM generate_series(1, 20) n),
                                     'orders')",
    ),
    ("inbox_standard_0", "SELECT idem_forget('m', 'orders')"),
    ("destination", "SELECT idem_try_claim('n', 'unknown')"),
    (
        "call_standard_0",
        "SELECT idem_begin_call('n', 'orders', 'charge')",
    ),
    ("outbox_0", "SELECT idem_send('t', '1'::jsonb)"),
    ("pending_0", "SELECT idem_acquire('n', 'orders')"),
    ("pending_0", "SELECT idem_next('mail', 1)"),
    ("payload_0", "SELECT idem_receive('n', 'mail', '1'::jsonb)"),
];

async fn database(name: &str) -> Result<(Database, Session)> {
    let db = Database::without_worker(name).await?;
    let session = db.connect().await?;
    session
        .run(
            "SELECT idem_try_claim('m', 'orders');
             SELECT idem_receive('received', 'mail', '1'::jsonb);
             CREATE TABLE log (row text);
             CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN INSERT INTO public.log VALUES (NEW::text); RETURN NULL; END'",
        )
        .await?;
    Ok((db, session))
}

/// I1, I12. Goal: pg_repack copies a table, and follows its changes by such a trigger. A claim that
/// does not fire it would be lost.
#[tokio::test]
async fn i12_trigger_of_others_fails_and_is_named() -> Result<()> {
    let (_db, session) = database("triggers").await?;
    for (table, statement) in WRITTEN {
        session
            .run(&format!(
                "CREATE TRIGGER repack_trigger AFTER INSERT OR DELETE OR UPDATE ON idem.{table}
                     FOR EACH ROW EXECUTE FUNCTION log()"
            ))
            .await?;
        let refusal = session.refused(statement).await?;
        assert_eq!(refusal.sqlstate, "58000", "{statement}: {refusal:?}");
        ensure!(
            refusal.message.contains("repack_trigger")
                && refusal.message.contains(table)
                && refusal.hint.starts_with("Drop the trigger,"),
            "{statement}: {refusal:?}"
        );
        session
            .run(&format!(
                "ALTER TABLE idem.{table} DISABLE TRIGGER repack_trigger;
                 BEGIN; {statement}; ROLLBACK;
                 DROP TRIGGER repack_trigger ON idem.{table}"
            ))
            .await?;
    }
    session
        .run("CREATE TABLE refers (destination int4 REFERENCES idem.destination (id))")
        .await?;
    let refusal = session
        .refused("SELECT idem_try_claim('n', 'unknown')")
        .await?;
    assert_eq!(refusal.sqlstate, "58000", "{refusal:?}");
    ensure!(refusal.hint.contains("foreign key"), "{refusal:?}");
    session.run("DROP TABLE refers").await?;
    let duplicate = session.text("SELECT idem_try_claim('m', 'orders')").await?;
    assert_eq!(duplicate, "f", "a duplicate writes nothing");
    Ok(())
}

/// I1, I3, I4, I12. Goal: commands that rewrite tables and indexes keep claims, effects, messages
/// and external calls.
#[tokio::test]
async fn i12_rewritten_tables_keep_their_rows() -> Result<()> {
    let (_db, session) = database("rewritten").await?;
    session
        .run(
            "SELECT idem_try_record('e', 'orders', '{\"topic\": \"t\", \"payload\": 1}');
             SELECT idem_begin_call('c', 'orders', 'charge')",
        )
        .await?;
    let other = session.text("SELECT idem_effects('e', 'orders')").await?;
    let tables = session
        .text(
            "SELECT relname FROM pg_class WHERE relnamespace = 'idem'::regnamespace
                AND relkind = 'r' ORDER BY 1",
        )
        .await?;
    for table in tables.lines() {
        for command in ["VACUUM FULL", "REINDEX TABLE", "VACUUM FREEZE"] {
            session.run(&format!("{command} idem.{table}")).await?;
        }
        if table.starts_with("inbox_") {
            session
                .run(&format!("CLUSTER idem.{table} USING {table}_pkey"))
                .await?;
        }
    }
    for id in ["m", "e"] {
        let again = format!("SELECT idem_try_claim('{id}', 'orders')");
        assert_eq!(session.text(&again).await?, "f", "{id}");
    }
    assert_eq!(
        session.text("SELECT idem_effects('e', 'orders')").await?,
        other
    );
    let call = "SELECT state FROM idem_begin_call('c', 'orders', 'charge')";
    assert_eq!(session.text(call).await?, "unknown");
    let next = "SELECT id FROM idem_next('mail', 1)";
    assert_eq!(session.text(next).await?, "received");
    Ok(())
}
