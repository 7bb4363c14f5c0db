//! The tables that a transaction keeps open for its next claim.

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session, until};

async fn claim(session: &Session, id: &str) -> Result<bool> {
    let sql = format!("SELECT idem_try_claim('{id}', 'orders')");
    Ok(session.text(&sql).await? == "t")
}

/// The server warns about a table that is still open at the end of its level.
fn ensure_no_warnings(session: &Session, after: &str) -> Result<()> {
    let notices = session.notices();
    ensure!(notices.is_empty(), "{after}: {notices:?}");
    Ok(())
}

/// Each way to end a transaction or a savepoint closes the tables, and the claims are those of the
/// levels that were committed.
#[tokio::test]
async fn i1_kept_tables_are_closed_before_their_level_ends() -> Result<()> {
    let db = Database::without_worker("kept_levels").await?;
    let session = db.connect().await?;
    // Here no statement between the levels closes the tables.
    let nested = "DO $$ BEGIN
                      PERFORM idem_try_claim('outer', 'orders');
                      BEGIN
                          PERFORM idem_try_claim('inner', 'orders');
                          PERFORM idem_try_claim('inner-2', 'orders');
                      EXCEPTION WHEN raise_exception THEN NULL;
                      END;
                      PERFORM idem_try_claim('between', 'orders');
                      BEGIN
                          RAISE EXCEPTION 'without a claim';
                      EXCEPTION WHEN raise_exception THEN NULL;
                      END;
                      BEGIN
                          PERFORM idem_try_claim('undone', 'orders');
                          PERFORM idem_try_claim('undone-2', 'orders');
                          RAISE EXCEPTION 'undo';
                      EXCEPTION WHEN raise_exception THEN
                          PERFORM idem_try_claim('handler', 'orders');
                      END;
                  END $$";
    for (n, (end, is_claimed)) in [
        ("COMMIT", true),
        ("ROLLBACK", false),
        ("SELECT 1/0", false),
        ("PREPARE TRANSACTION 'kept'", true),
    ]
    .into_iter()
    .enumerate()
    {
        let id = |name: &str| format!("{name}-{n}");
        session.run("BEGIN").await?;
        ensure!(claim(&session, &id("first")).await?, "{end}");
        session.run("SAVEPOINT s").await?;
        ensure!(claim(&session, &id("released")).await?, "{end}");
        session.run("RELEASE s; SAVEPOINT s").await?;
        ensure!(claim(&session, &id("undone")).await?, "{end}");
        session.run("ROLLBACK TO s").await?;
        ensure!(claim(&session, &id("after")).await?, "{end}");
        session.run(nested).await?;
        ensure!(claim(&session, &id("last")).await?, "{end}");
        let ended = session.run(end).await;
        assert_eq!(ended.is_err(), end == "SELECT 1/0", "{end}");
        if ended.is_err() {
            session.run("ROLLBACK").await?;
        }
        if end.starts_with("PREPARE") {
            session.run("COMMIT PREPARED 'kept'").await?;
        }
        ensure_no_warnings(&session, end)?;
        for name in ["first", "released", "after", "last"] {
            assert_eq!(
                claim(&session, &id(name)).await?,
                !is_claimed,
                "{end} {name}"
            );
        }
        ensure!(claim(&session, &id("undone")).await?, "{end}");
        let forgotten = "SELECT coalesce(string_agg(x, ','), '')
                           FROM unnest('{outer,inner,inner-2,between,undone,handler}'::text[]) x
                          WHERE idem_forget(x, 'orders')";
        let expected = if is_claimed {
            "outer,inner,inner-2,between,handler"
        } else {
            ""
        };
        assert_eq!(session.text(forgotten).await?, expected, "{end}");
    }
    Ok(())
}

/// ALTER TABLE and DROP TABLE fail while a table is open.
#[tokio::test]
async fn statement_that_changes_a_table_follows_a_claim() -> Result<()> {
    let db = Database::without_worker("kept_ddl").await?;
    let session = db.connect().await?;
    for (n, statement) in [
        "REINDEX TABLE idem.inbox_standard_0",
        "TRUNCATE idem.inbox_standard_0",
        "ALTER TABLE idem.inbox_standard_0 SET (fillfactor = 90)",
        "DO $$ BEGIN EXECUTE 'TRUNCATE idem.inbox_standard_0'; END $$",
        "DROP EXTENSION idem",
    ]
    .into_iter()
    .enumerate()
    {
        session.run("BEGIN").await?;
        ensure!(claim(&session, &format!("before-{n}")).await?);
        session.run(statement).await?;
        if !statement.starts_with("DROP") {
            ensure!(claim(&session, &format!("after-{n}")).await?);
        }
        session.run("COMMIT").await?;
        ensure_no_warnings(&session, statement)?;
    }
    session.run("CREATE EXTENSION idem").await?;
    ensure!(claim(&session, "new").await?);
    Ok(())
}

/// I1: another session replaces the index of a table that is kept open. The next claim of the
/// transaction opens the new index.
#[tokio::test]
async fn i1_kept_table_gets_the_index_that_replaces_its_own() -> Result<()> {
    let db = Database::without_worker("kept_reindex").await?;
    let session = db.connect().await?;
    let writers = [db.connect().await?, db.connect().await?];
    let (admin, observer) = (db.connect().await?, db.connect().await?);
    let rebuilder = admin.pid().await?;
    // REINDEX also waits for a transaction that has a snapshot when REINDEX looks for snapshots. So
    // no open transaction of this test runs a statement while REINDEX goes on.
    let first = writers[0].pid().await?;
    let second = writers[1].pid().await?;
    let last = session.pid().await?;
    let blocked_by = async |pid: i32| {
        let is_blocked = format!("SELECT {pid} = ANY (pg_blocking_pids({rebuilder}))");
        until("REINDEX waits", async || {
            Ok(observer.text(&is_blocked).await? == "t")
        })
        .await
    };
    // The index that the session has locked, because the table is kept open.
    let kept = "SELECT string_agg(relation::regclass::text, ',')
                  FROM pg_locks JOIN pg_index ON indexrelid = relation
                 WHERE pid = pg_backend_pid() AND indrelid = 'idem.inbox_standard_0'::regclass";
    let index = "SELECT indexrelid FROM pg_index WHERE indisprimary
                    AND indrelid = 'idem.inbox_standard_0'::regclass";

    ensure!(claim(&session, "warm").await?);
    let before = observer.text(index).await?;
    writers[0].run("BEGIN").await?;
    ensure!(claim(&writers[0], "w0").await?);
    let rebuilt = tokio::spawn(async move {
        admin
            .run("REINDEX TABLE CONCURRENTLY idem.inbox_standard_0")
            .await
    });
    // It waits for the first writer, builds the index, and then waits for the second one.
    blocked_by(first).await?;
    writers[1].run("BEGIN").await?;
    ensure!(claim(&writers[1], "w1").await?);
    writers[0].run("COMMIT").await?;
    blocked_by(second).await?;
    // This transaction begins with both indexes. Then the new one replaces the old one.
    session.run("BEGIN").await?;
    ensure!(claim(&session, "m0").await?);
    assert_eq!(session.text(kept).await?, "idem.inbox_standard_0_pkey");
    writers[1].run("COMMIT").await?;
    blocked_by(last).await?;
    ensure!(observer.text(index).await? != before);
    ensure!(claim(&session, "m1").await?);
    assert_eq!(session.text(kept).await?, "idem.inbox_standard_0_pkey");
    session.run("COMMIT").await?;
    rebuilt.await??;
    for id in ["warm", "w0", "w1", "m0", "m1"] {
        ensure!(!claim(&session, id).await?, "{id}");
    }
    ensure_no_warnings(&session, "REINDEX")
}
