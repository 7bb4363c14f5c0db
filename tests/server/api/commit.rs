//! I10: after `idem_forbid_commit`, only the program that calls `idem_allow_commit` can commit.

use anyhow::{Context, Result, ensure};
use idem_testkit::{Database, Session};

async fn session(name: &str) -> Result<(Database, Session)> {
    let db = Database::with_idem(name).await?;
    let session = db.connect().await?;
    session.run("CREATE TABLE work (id text)").await?;
    Ok((db, session))
}

/// Begins as a consumer does: BEGIN, and a claim whose COMMIT is forbidden.
const BEGIN: &str = "BEGIN; SELECT idem_forbid_commit(); SELECT idem_try_claim('m', 'd')";

/// Checks that no transaction is open, and that nothing was committed.
async fn is_rolled_back(session: &Session, sql: &str) -> Result<()> {
    let state = "SELECT (SELECT count(*) FROM work), idem_is_claimed('m', 'd'),
                        statement_timestamp() = transaction_timestamp()";
    assert_eq!(session.text(state).await?, "0|f|t", "{sql}");
    Ok(())
}

/// Each statement that commits fails with 2D000, also after ROLLBACK TO a savepoint that was set
/// before `idem_forbid_commit`. The transaction is then a failed one, so a program
/// that ignores the error cannot write.
#[tokio::test]
async fn i10_forbidden_commit_fails() -> Result<()> {
    let (_db, session) = session("forbidden").await?;
    for sql in [
        "COMMIT",
        "END",
        "COMMIT AND CHAIN",
        "COMMIT; BEGIN; INSERT INTO work VALUES ('n'); COMMIT",
        "PREPARE TRANSACTION 'forbidden'",
        "ROLLBACK TO SAVEPOINT before; SELECT idem_try_claim('m', 'd'); COMMIT",
        "RELEASE SAVEPOINT before; COMMIT",
    ] {
        session
            .run(
                "BEGIN; SAVEPOINT before; SELECT idem_forbid_commit();
                 SELECT idem_try_claim('m', 'd'); INSERT INTO work VALUES ('m')",
            )
            .await?;
        let refusal = session.refused(sql).await?;
        ensure!(refusal.sqlstate == "2D000", "{sql}: {refusal:?}");
        ensure!(refusal.hint.contains("COMMIT"), "{sql}: {refusal:?}");
        let refusal = session.refused("INSERT INTO work VALUES ('n')").await?;
        ensure!(refusal.sqlstate == "25P02", "{sql}: {refusal:?}");
        // COMMIT of a failed transaction is a rollback, so it is accepted.
        session.run("COMMIT").await?;
        is_rolled_back(&session, sql).await?;
    }
    Ok(())
}

/// A function that the statement of the program calls cannot commit in another way either.
#[tokio::test]
async fn i10_forbidden_commit_fails_in_an_implicit_block() -> Result<()> {
    let (_db, session) = session("implicit").await?;
    for sql in [
        "INSERT INTO work VALUES ('m'); SELECT idem_forbid_commit()",
        "INSERT INTO work VALUES ('m'); SELECT idem_forbid_commit(); COMMIT",
    ] {
        let refusal = session.refused(sql).await?;
        ensure!(refusal.sqlstate == "2D000", "{sql}: {refusal:?}");
        is_rolled_back(&session, sql).await?;
    }
    Ok(())
}

/// A foreign table that the transaction uses for the first time does not commit before the error.
#[tokio::test]
async fn i10_forbidden_commit_does_not_commit_foreign_tables() -> Result<()> {
    let (db, session) = session("foreign").await?;
    let host = db.cluster().socket_dir();
    session
        .run(&format!(
            "CREATE EXTENSION postgres_fdw;
             CREATE SERVER same FOREIGN DATA WRAPPER postgres_fdw
                 OPTIONS (host '{}', dbname '{}');
             CREATE USER MAPPING FOR postgres SERVER same OPTIONS (user 'postgres');
             CREATE FOREIGN TABLE elsewhere (id text) SERVER same OPTIONS (table_name 'work')",
            host.display(),
            db.name()
        ))
        .await?;
    session.run(BEGIN).await?;
    session.run("INSERT INTO elsewhere VALUES ('m')").await?;
    let refusal = session.refused("COMMIT").await?;
    ensure!(refusal.sqlstate == "2D000", "{refusal:?}");
    session.run("ROLLBACK").await?;
    is_rolled_back(&session, "COMMIT").await
}

/// The error of a statement keeps its position after the hook on statements is set.
#[tokio::test]
async fn errors_of_statements_keep_their_position() -> Result<()> {
    let (_db, session) = session("position").await?;
    session
        .run("BEGIN; SELECT idem_forbid_commit(); ROLLBACK")
        .await?;
    let error = session
        .batch_execute("CREATE TABLE other (id nonexistent)")
        .await
        .err()
        .context("a table with an unknown type")?;
    let error = error.as_db_error().context("not an error of the server")?;
    ensure!(error.position().is_some(), "{error:?}");
    Ok(())
}

/// `idem_allow_commit` and COMMIT in one query commit. They assign no transaction id.
#[tokio::test]
async fn i10_allowed_commit_succeeds() -> Result<()> {
    let (_db, session) = session("allowed").await?;
    session
        .run("BEGIN; SELECT idem_forbid_commit(); SELECT idem_forbid_commit()")
        .await?;
    session.run("SELECT idem_allow_commit()").await?;
    assert_eq!(
        session
            .text("SELECT pg_current_xact_id_if_assigned() IS NULL")
            .await?,
        "t"
    );
    session.run("COMMIT").await?;
    session.run(BEGIN).await?;
    session.run("INSERT INTO work VALUES ('m')").await?;
    session.run("SELECT idem_allow_commit(); COMMIT").await?;
    assert_eq!(
        session
            .text("SELECT count(*), idem_is_claimed('m', 'd') FROM work")
            .await?,
        "1|t"
    );
    session
        .run("BEGIN; SELECT idem_forbid_commit(); ROLLBACK; BEGIN; DELETE FROM work; COMMIT")
        .await
        .context("the state of a rolled-back transaction is not kept")?;
    Ok(())
}

/// After `idem_allow_commit` the transaction can also be prepared.
#[tokio::test]
async fn i10_allowed_prepare_succeeds() -> Result<()> {
    let (db, session) = session("prepared").await?;
    session.run(BEGIN).await?;
    session
        .run("SELECT idem_allow_commit(); PREPARE TRANSACTION 'allowed'")
        .await?;
    // The server accepts COMMIT PREPARED only outside of a transaction block, so the statement is
    // never a COMMIT of a transaction in which COMMIT is forbidden.
    db.connect().await?.run("COMMIT PREPARED 'allowed'").await?;
    assert_eq!(session.text("SELECT idem_is_claimed('m', 'd')").await?, "t");
    Ok(())
}

/// A procedure cannot commit in a transaction block, with or without `idem_forbid_commit`.
#[tokio::test]
async fn i10_procedure_does_not_commit() -> Result<()> {
    let (_db, session) = session("procedure").await?;
    session
        .run("CREATE PROCEDURE commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'")
        .await?;
    session.run(BEGIN).await?;
    let refusal = session.refused("CALL commits()").await?;
    ensure!(refusal.sqlstate == "2D000", "{refusal:?}");
    session.run("ROLLBACK").await?;
    is_rolled_back(&session, "CALL").await
}

/// If the transaction has ended, `idem_allow_commit` fails with 25P01, and the COMMIT of the same
/// query is skipped: the second transaction of the handler is not committed.
#[tokio::test]
async fn i10_allow_fails_if_the_transaction_has_ended() -> Result<()> {
    let (_db, session) = session("ended").await?;
    for sql in [
        "ROLLBACK",
        "ROLLBACK; BEGIN; INSERT INTO work VALUES ('n')",
        "ROLLBACK AND CHAIN; INSERT INTO work VALUES ('n')",
    ] {
        session.run(BEGIN).await?;
        session.run(sql).await?;
        let refusal = session
            .refused("SELECT idem_allow_commit(); COMMIT")
            .await?;
        ensure!(refusal.sqlstate == "25P01", "{sql}: {refusal:?}");
        ensure!(refusal.hint.contains("ROLLBACK"), "{sql}: {refusal:?}");
        session.run("ROLLBACK").await?;
        is_rolled_back(&session, sql).await?;
    }
    Ok(())
}

/// After a statement has failed, `idem_allow_commit` fails with 25P02, so its COMMIT cannot become
/// a silent ROLLBACK.
#[tokio::test]
async fn i10_allow_fails_in_a_failed_transaction() -> Result<()> {
    let (_db, session) = session("failed").await?;
    session.run(BEGIN).await?;
    assert_eq!(session.refused("SELECT 1 / 0").await?.sqlstate, "22012");
    let refusal = session
        .refused("SELECT idem_allow_commit(); COMMIT")
        .await?;
    ensure!(refusal.sqlstate == "25P02", "{refusal:?}");
    session.run("ROLLBACK").await?;
    is_rolled_back(&session, "COMMIT").await
}

/// Outside of a transaction block `idem_forbid_commit` fails, because the transaction of this
/// statement ends with it.
#[tokio::test]
async fn i10_forbid_needs_a_transaction_block() -> Result<()> {
    let (_db, session) = session("forbid_alone").await?;
    let refusal = session.refused("SELECT idem_forbid_commit()").await?;
    ensure!(refusal.sqlstate == "25P01", "{refusal:?}");
    ensure!(refusal.hint.starts_with("Send BEGIN"), "{refusal:?}");
    session.run("INSERT INTO work VALUES ('m')").await?;
    Ok(())
}
