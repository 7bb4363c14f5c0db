//! Rows that other commands than claims insert: no such row may be missing in a filter.

use anyhow::{Result, ensure};
use idem_testkit::Session;
use idem_testkit::ring::build_filters;
use idem_testkit::{Database, until};

use super::{claim, seal, status};

/// The commands that insert a row. `{row}` is the row with the id `arrived`.
const COMMANDS: [(&str, &str); 5] = [
    ("INSERT", "INSERT INTO {table} {row}"),
    (
        "UPDATE",
        "UPDATE {table} SET (key, id) = (SELECT key, id FROM ({row}) r) WHERE id = 'old'",
    ),
    (
        "replica",
        "SET session_replication_role = replica; INSERT INTO {table} {row}",
    ),
    (
        "disabled triggers",
        "ALTER TABLE {table} DISABLE TRIGGER ALL; INSERT INTO {table} {row}",
    ),
    (
        "COPY",
        "CREATE TABLE arrived AS {row}; COPY arrived TO '{file}'; COPY {table} FROM '{file}'",
    ),
];

/// The columns of the row with the id `arrived`.
const ROW: &str = "SELECT idem.key_of('arrived') AS key, now() AS claimed_at, 1 AS destination, 0::int2 AS segment,
                          'arrived'::text AS id, NULL::bytea AS fingerprint";

/// I1: a row that another command inserts is found, in a slice with rows and in an empty one, in a
/// sealed slice and in one that took claims.
#[tokio::test]
async fn i1_row_that_another_command_inserts_is_found() -> Result<()> {
    let first = Database::without_worker("arrives").await?;
    for (command, sql) in COMMANDS {
        for (slice, has_row) in [(2, true), (2, false), (0, true)] {
            if command == "UPDATE" && !has_row {
                continue;
            }
            let db = Database::with_idem_in(first.cluster().clone(), "arrives").await?;
            let session = db.connect().await?;
            ensure!(claim(&session, "first").await?);
            let table = format!("idem.inbox_standard_{slice}");
            if has_row {
                let row = "SELECT idem.key_of('old'), now(), 1, 'old'";
                session
                    .run(&format!(
                        "INSERT INTO {table} (key, claimed_at, destination, id) {row};
                         SELECT idem_finish_restore()"
                    ))
                    .await?;
            }
            build_filters(&session).await?;
            let what = format!("{command}, {table}, {has_row}");
            ensure!(status(&session, slice).await? == "complete", "{what}");
            let file = db.cluster().data_dir().join(db.name());
            let sql = sql
                .replace("{table}", &table)
                .replace("{row}", ROW)
                .replace("{file}", &file.to_string_lossy());
            db.connect().await?.run(&sql).await?;
            session.run("SELECT idem_finish_restore()").await?;
            ensure!(status(&session, slice).await? == "none", "{what}");
            ensure!(!claim(&session, "arrived").await?, "{what}");
            build_filters(&session).await?;
            if slice == 0 {
                seal(&session).await?;
            }
            ensure!(!claim(&session, "arrived").await?, "{what}, in the filter");
            ensure!(claim(&session, "new").await?, "{what}");
        }
    }
    Ok(())
}

/// I1: a row has executed the constraint, and is not in the slice yet. A filter that is prepared
/// now waits for the transaction of the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_filter_waits_for_a_row_that_will_arrive() -> Result<()> {
    let db = Database::without_worker("will_arrive").await?;
    let (session, writer, gate) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    ensure!(claim(&session, "first").await?);
    const TABLE: &str = "idem.inbox_standard_2";
    // Constraints are executed in the order of their names.
    session
        .run(&format!(
            "CREATE FUNCTION wait_at_gate() RETURNS boolean LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN true; END $$;
             ALTER TABLE {TABLE} DISABLE TRIGGER note_load;
             ALTER TABLE {TABLE} ADD CONSTRAINT wait CHECK (wait_at_gate())"
        ))
        .await?;
    gate.run("SELECT pg_advisory_lock(1)").await?;
    let pid = writer.pid().await?;
    let insert = format!("INSERT INTO {TABLE} {ROW}");
    let writing = tokio::spawn(async move { writer.run(&insert).await });
    db.until_blocked(pid).await?;
    let steps = "SELECT count(idem.build_filters(1)) FROM generate_series(1, 40)";
    session.run(steps).await?;
    ensure!(status(&session, 2).await? == "building");
    gate.run("SELECT pg_advisory_unlock(1)").await?;
    writing.await??;
    build_filters(&session).await?;
    ensure!(!claim(&session, "arrived").await?);
    Ok(())
}

/// I1: the rows of a restored dump are found, in a slice with rows and in an empty one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_rows_of_a_restored_dump_are_found() -> Result<()> {
    let db = Database::without_worker("restored_rows").await?;
    let session = db.connect().await?;
    ensure!(claim(&session, "first").await?);
    for slice in [2, 0] {
        let table = format!("idem.inbox_standard_{slice}");
        session
            .run(&format!(
                "INSERT INTO {table} (key, claimed_at, destination, id)
                     SELECT idem.key_of('s{slice}'), now(), 1, 's{slice}';
                 SELECT idem_finish_restore()"
            ))
            .await?;
        let pattern = format!("--table={table}");
        // The table of an extension is dumped by name, without the extension.
        let dump = db
            .cluster()
            .run("pg_dump", ["--data-only", &pattern, db.name()], &[])?;
        ensure!(dump.contains("COPY"), "the dump has the rows: {dump}");
        session.run(&format!("TRUNCATE {table}")).await?;
        build_filters(&session).await?;
        ensure!(status(&session, slice).await? == "complete");
        db.cluster().psql(db.name(), &dump)?;
        session.run("SELECT idem_finish_restore()").await?;
        ensure!(status(&session, slice).await? == "none");
        ensure!(!claim(&session, &format!("s{slice}")).await?);
        build_filters(&session).await?;
        if slice == 0 {
            seal(&session).await?;
        }
        ensure!(!claim(&session, &format!("s{slice}")).await?);
    }
    Ok(())
}

/// I1: rows of logical replication are found: those of the first copy, and those that the
/// subscription applies later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_rows_of_logical_replication_are_found() -> Result<()> {
    let cluster = super::cluster("logical")?
        .setting("wal_level", "logical")
        .start()?;
    let publisher = Session::in_empty_database(&cluster, "publisher").await?;
    let session = Session::in_database_with_idem(&cluster, "subscriber").await?;
    ensure!(claim(&session, "first").await?);
    const TABLE: &str = "idem.inbox_standard_2";
    let insert = |id: &str| {
        format!(
            "INSERT INTO {TABLE} (key, claimed_at, destination, id)
                 VALUES (substr(encode(sha256('{id}'), 'hex'), 1, 32)::uuid, now(), 1, '{id}')"
        )
    };
    publisher
        .run(&format!(
            "CREATE SCHEMA idem;
             CREATE TABLE {TABLE} (key uuid, claimed_at timestamptz, destination int4, id text,
                                   fingerprint bytea, PRIMARY KEY (key, destination));
             CREATE PUBLICATION p FOR TABLE {TABLE}"
        ))
        .await?;
    publisher.run(&insert("copied")).await?;
    publisher
        .run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        .await?;
    build_filters(&session).await?;
    let publisher_at = cluster.connection_string("publisher");
    session
        .run(&format!(
            "CREATE SUBSCRIPTION s CONNECTION '{publisher_at}' PUBLICATION p
                 WITH (create_slot = false, slot_name = 's')"
        ))
        .await?;
    for id in ["copied", "applied"] {
        if id == "applied" {
            build_filters(&session).await?;
            ensure!(status(&session, 2).await? == "complete");
            publisher.run(&insert(id)).await?;
        }
        until("the row has arrived", async || {
            let there = format!("SELECT count(*) FROM {TABLE} WHERE id = '{id}'");
            Ok(session.text(&there).await? == "1")
        })
        .await?;
        session.run("SELECT idem_finish_restore()").await?;
        ensure!(status(&session, 2).await? == "none", "{id}");
        ensure!(!claim(&session, id).await?, "{id}");
    }
    session
        .run("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        .await?;
    session.run("DROP SUBSCRIPTION s").await
}
