//! The first tables of a restore (I1, I3, I4, I12): pg_restore loads tables in any order, and the
//! first one may be a slice.

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::{Dump, Session, until};

use super::restore::{assert_restoring, pick, start_restore};

/// Each kind of table that a dump contains, by one table of the kind.
const FIRST: &[&str] = &[
    "inbox_standard_0",
    "call_standard_0",
    "outbox_0",
    "pending_0",
    "payload_0",
    "progress_0",
    "relay_partition",
    "delayed",
    "parked_effect",
    "dead_letter",
    "retry_policy",
    "destination",
    "clock",
];

fn server() -> Result<Cluster> {
    super::cluster("loads")?
        .setting("idem.databases", "none")
        .start()
}

/// Fills the database `original` with claims of two destinations, an effect, a received message and
/// an external call, and with more progress than one table of progress keeps.
async fn original(cluster: &Cluster) -> Result<Dump> {
    let session = Session::in_database_with_idem(cluster, "original").await?;
    session
        .run(
            "SELECT idem_try_claim('first', 'stock');
             SELECT idem_try_record('m1', 'orders', '{\"topic\": \"t\", \"payload\": 1}');
             SELECT idem_receive('received', 'mail', '1'::jsonb);
             SELECT idem_begin_call('paid', 'orders', 'charge');
             SELECT idem_create_relay('audit', 2);
             INSERT INTO idem.progress_0 (pos, relay, partition, floor_from, snapshot_from)
                 SELECT nextval('idem.progress_pos_seq'), r.id, 1, 0, '1:1:'
                   FROM idem.relay r, generate_series(1, 90000) WHERE r.name = 'audit';
             SELECT idem_finish_restore()",
        )
        .await?;
    Dump::of(cluster, "original")
}

/// I1, I3, I4. Goal: the functions fail from the first table of a restore on, whichever it is. A
/// consumer or a relay that runs would see an empty database otherwise.
#[tokio::test]
async fn i1_i4_first_table_of_a_restore_stops_the_functions() -> Result<()> {
    let server = server()?;
    let dump = original(&server).await?;
    let entries = dump.entries(&server)?;
    for table in FIRST {
        let session = Session::in_empty_database(&server, table).await?;
        dump.load(&server, table, &["--section=pre-data"])?;
        let (first, _) = pick(&entries, &[table]);
        ensure!(first.len() == 1, "{table}");
        dump.load_entries(&server, table, &first)?;
        assert_restoring(&session).await?;
        // A person may insert a destination by hand, and ends this state with the function.
        if *table != "destination" {
            let refusal = session.refused("SELECT idem_finish_restore()").await?;
            assert_eq!(refusal.sqlstate, "55000", "{table}: {refusal:?}");
        }
        let step = session.text("SELECT idem.rotate_progress()").await?;
        ensure!(step == "f", "{table}: progress has rotated");
        for _ in 0..3 {
            session.run("SELECT idem.rotate_pending()").await?;
        }
        let presence = session.text("SELECT idem.pending_presence()").await?;
        ensure!(presence != "none", "{table}: {presence}");
    }
    Ok(())
}

/// I1, I4. Goal: the functions fail while the first table is loading, before its COPY commits. They
/// work again if nothing was loaded, because the COPY was rolled back.
#[tokio::test]
async fn i1_load_in_progress_stops_the_functions() -> Result<()> {
    let server = server()?;
    let dump = original(&server).await?;
    let session = Session::in_empty_database(&server, "loading").await?;
    dump.load(&server, "loading", &["--section=pre-data"])?;
    // The session has the state of the empty database in its cache.
    session
        .run("SELECT idem_try_claim('before', 'orders')")
        .await?;
    // A consumer is between two claims of one statement. It keeps the tables of its claim open.
    session.run("SELECT pg_advisory_lock(1)").await?;
    let consumer = Session::superuser(&server, "loading").await?;
    let pid = consumer.pid().await?;
    let claims = "DO $$ BEGIN
                      FOR n IN 1..2 LOOP
                          PERFORM idem_try_claim('open' || n, 'orders');
                          PERFORM pg_advisory_lock(1);
                      END LOOP;
                  END $$";
    let consumer = tokio::spawn(async move { consumer.refused(claims).await });
    until("the consumer waits", async || {
        let is_blocked = format!("SELECT cardinality(pg_blocking_pids({pid})) > 0");
        Ok(session.text(&is_blocked).await? == "t")
    })
    .await?;
    let restore = Session::superuser(&server, "loading").await?;
    restore
        .run("BEGIN; INSERT INTO idem.inbox_standard_0 SELECT * FROM idem.inbox_standard_1")
        .await?;
    session.run("SELECT pg_advisory_unlock(1)").await?;
    let refusal = consumer.await??;
    assert_eq!(refusal.sqlstate, "58000", "{refusal:?}");
    assert_restoring(&session).await?;
    restore.run("ROLLBACK").await?;
    let claim = "SELECT idem_try_claim('after', 'orders')";
    assert_eq!(session.text(claim).await?, "t");
    Ok(())
}

/// I12. Goal: a consumer that runs between CREATE EXTENSION and the first table has created
/// destinations. The load of the destinations fails then, and the restore cannot be finished.
#[tokio::test]
async fn i12_restore_into_a_used_database_is_not_finished() -> Result<()> {
    let server = server()?;
    let dump = original(&server).await?;
    let session = Session::in_empty_database(&server, "used").await?;
    dump.load(&server, "used", &["--section=pre-data"])?;
    session
        .run("BEGIN; SELECT idem_try_claim('before', 'orders'); ROLLBACK")
        .await?;
    let failed = server.run(
        "pg_restore",
        [
            "--section=data",
            "--dbname",
            "used",
            &dump.file().to_string_lossy(),
        ],
        &[],
    );
    ensure!(failed.is_err(), "the destination of the consumer conflicts");
    assert_restoring(&session).await?;
    let refusal = session.refused("SELECT idem_finish_restore()").await?;
    ensure!(refusal.detail.contains("destination"), "{refusal:?}");
    Ok(())
}

/// I12. Goal: a restore in several transactions is not taken for a complete one after the first
/// of them. pg_dump sorts tables by name, so the rings are loaded after all slices.
#[tokio::test]
async fn i12_part_of_a_restore_in_one_transaction_does_not_end_it() -> Result<()> {
    let server = server()?;
    let dump = original(&server).await?;
    let entries = dump.entries(&server)?;
    let data: Vec<_> = entries
        .iter()
        .filter(|entry| entry.contains(" TABLE DATA "))
        .cloned()
        .collect();
    let ring = data.iter().position(|entry| entry.contains(" idem ring "));
    let is_slice = |entry: &String| {
        ["call_", "inbox_", "outbox_", "payload_", "pending_"]
            .iter()
            .any(|kind| entry.contains(&format!(" idem {kind}")))
    };
    ensure!(data.iter().rposition(is_slice) < ring, "{data:?}");
    let session = Session::in_empty_database(&server, "parts").await?;
    dump.load(&server, "parts", &["--section=pre-data"])?;
    let (first, second) = data.split_at(data.len() / 2);
    for part in [first, second] {
        let list = dump.file().with_extension("part");
        std::fs::write(&list, part.join("\n"))?;
        let list = list.to_string_lossy();
        let options = ["--single-transaction", "--use-list", &list];
        dump.load(&server, "parts", &options)?;
        assert_restoring(&session).await?;
    }
    dump.load(&server, "parts", &["--section=post-data"])?;
    let rest: Vec<_> = entries
        .iter()
        .filter(|entry| entry.contains(" SEQUENCE SET "))
        .cloned()
        .collect();
    dump.load_entries(&server, "parts", &rest)?;
    session.run("SELECT idem_finish_restore()").await?;
    let again = "SELECT idem_try_claim('first', 'stock')";
    assert_eq!(session.text(again).await?, "f");
    Ok(())
}

/// I12. Goal: each table that a dump contains notes its load.
#[tokio::test]
async fn i12_each_dumped_table_notes_its_load() -> Result<()> {
    let server = server()?;
    let session = Session::in_database_with_idem(&server, "triggers").await?;
    let without = session
        .text(
            "SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (
                        SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgenabled = 'A'
                           AND t.tgfoid = 'idem.note_load'::regproc))
               FROM pg_extension e, unnest(e.extconfig) AS o (oid) JOIN pg_class c USING (oid)
              WHERE e.extname = 'idem' AND c.relkind = 'r'",
        )
        .await?;
    ensure!(without.ends_with("|0") && without != "0|0", "{without}");
    Ok(())
}

/// I1, I4. Goal: a restore in one transaction into a database that has the extension already keeps
/// the functions out until its commit, also after it has loaded all tables of state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_restore_in_one_transaction_ends_at_its_commit() -> Result<()> {
    let server = server()?;
    original(&server).await?;
    let session = Session::superuser(&server, "original").await?;
    session.run("CREATE TABLE last AS SELECT 1").await?;
    let dump = Dump::of(&server, "original")?;
    let session = Session::in_empty_database(&server, "together").await?;
    dump.load(&server, "together", &["--section=pre-data"])?;
    // pg_dump sorts tables by their schema, so the load of this table is the last one.
    let holder = Session::superuser(&server, "together").await?;
    holder.run("BEGIN; LOCK TABLE last IN SHARE MODE").await?;
    let options = ["--section=data", "--single-transaction"];
    let mut restore = start_restore(&server, dump.file(), "together", &options)?;
    until("the load of the last table waits", async || {
        let waits = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = 'together' AND wait_event_type = 'Lock'
                        AND query ~ '^COPY public.last'";
        Ok(session.text(waits).await? == "1")
    })
    .await?;
    assert_restoring(&session).await?;
    holder.run("COMMIT").await?;
    ensure!(restore.wait()?.success(), "pg_restore has failed");
    let again = "SELECT idem_try_claim('first', 'stock')";
    assert_eq!(session.text(again).await?, "f");
    Ok(())
}

/// I12. Goal: maintenance forgets a load that was rolled back. After a long time the server would
/// not know its transaction any more, and the load would count.
#[tokio::test]
async fn i12_load_that_rolled_back_is_forgotten() -> Result<()> {
    let server = server()?;
    let session = Session::in_database_with_idem(&server, "rolled_back").await?;
    session
        .run("BEGIN; INSERT INTO idem.retry_policy TABLE idem.retry_policy; ROLLBACK")
        .await?;
    let notes = "SELECT count(*) FROM idem.loaded_table";
    assert_eq!(session.text(notes).await?, "1");
    session.run("CALL idem_maintain()").await?;
    assert_eq!(session.text(notes).await?, "0");
    Ok(())
}

/// I1, I12. Goal: a load is noted at once also in a database whose tables are published.
#[tokio::test]
async fn i1_load_into_a_published_database_stops_the_functions() -> Result<()> {
    let server = server()?;
    let session = Session::in_database_with_idem(&server, "published").await?;
    session
        .run("CREATE PUBLICATION everything FOR ALL TABLES")
        .await?;
    let load = Session::superuser(&server, "published").await?;
    load.run("BEGIN; INSERT INTO idem.retry_policy TABLE idem.retry_policy")
        .await?;
    assert_restoring(&session).await
}

/// I12. Goal: a restore can be finished in a database without destinations, which only sends.
#[tokio::test]
async fn i12_restore_without_destinations_is_finished() -> Result<()> {
    let server = server()?;
    let session = Session::in_database_with_idem(&server, "sends").await?;
    session.run("SELECT idem_send('t', '1'::jsonb)").await?;
    session
        .run("INSERT INTO idem.retry_policy TABLE idem.retry_policy")
        .await?;
    session.run("SELECT idem_finish_restore()").await?;
    session.run("SELECT idem_send('t', '2'::jsonb)").await?;
    // Such a dump has no statement for an empty table.
    let dump = server.run("pg_dump", ["--inserts", "sends"], &[])?;
    let session = Session::in_empty_database(&server, "inserted").await?;
    server.psql("inserted", &dump)?;
    assert_restoring(&session).await?;
    session.run("SELECT idem_finish_restore()").await?;
    let effects = "SELECT count(*) FROM idem_relay_next('default')";
    assert_eq!(session.text(effects).await?, "2");
    Ok(())
}
