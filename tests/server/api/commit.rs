//! I10: after `idem_forbid_commit`, only a marked COMMIT commits, or the program that calls
//! `idem_allow_commit`.

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
        "COMMIT AND CHAIN /* idem */",
        "PREPARE TRANSACTION 'forbidden' /* idem */",
        "COMMIT; /* idem */",
        "SELECT '/* idem */'; COMMIT",
        "COMMIT /* idem*/",
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

/// The mark is read from the text of the COMMIT, wherever poolers and drivers put comments of their
/// own. The COMMIT ends savepoints too, and the next transaction is not guarded.
#[tokio::test]
async fn i10_marked_commit_commits() -> Result<()> {
    let (_db, session) = session("marked").await?;
    for (n, sql) in [
        "COMMIT /* idem */",
        "COMMIT/* idem */;",
        "/* traced */ commit work /* idem */ -- and more",
        "/* idem */ END",
        "SELECT 1; COMMIT /* idem */; SELECT 2",
        "SAVEPOINT open; COMMIT /* idem */",
        "INSERT INTO work VALUES ('n'); COMMIT /* idem */; BEGIN; DELETE FROM work WHERE id = 'n'; \
         COMMIT",
    ]
    .into_iter()
    .enumerate()
    {
        session
            .run(&format!(
                "BEGIN; SELECT idem_forbid_commit(); SELECT idem_try_claim('{n}', 'd');
                 INSERT INTO work VALUES ('m')"
            ))
            .await?;
        session.run(sql).await.with_context(|| sql.to_owned())?;
        let state = format!(
            "SELECT count(*), idem_is_claimed('{n}', 'd'),
                    statement_timestamp() = transaction_timestamp() FROM work"
        );
        assert_eq!(
            session.text(&state).await?,
            format!("{}|t|t", n + 1),
            "{sql}"
        );
    }
    Ok(())
}

/// The mark works in the extended protocol, also with a statement that is prepared and used again.
#[tokio::test]
async fn i10_prepared_marked_commit_commits() -> Result<()> {
    let (_db, session) = session("marked_prepared").await?;
    let commit = session.prepare("COMMIT /* idem */").await?;
    for n in 1..=3 {
        session.run("BEGIN; SELECT idem_forbid_commit()").await?;
        session.run("INSERT INTO work VALUES ('m')").await?;
        session.execute(&commit, &[]).await?;
        assert_eq!(
            session.text("SELECT count(*) FROM work").await?,
            n.to_string()
        );
    }
    let error = session.execute(&commit, &[]).await.err();
    let error = error.context("a COMMIT without a transaction")?;
    ensure!(
        error.code().is_some_and(|code| code.code() == "25P01"),
        "{error:?}"
    );
    Ok(())
}

/// A deferred constraint that fails at a marked COMMIT rolls back, and nothing stays marked.
#[tokio::test]
async fn i10_marked_commit_that_fails_rolls_back() -> Result<()> {
    let (_db, session) = session("marked_deferred").await?;
    session
        .run("ALTER TABLE work ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
        .await?;
    session.run(BEGIN).await?;
    session.run("INSERT INTO work VALUES ('m'), ('m')").await?;
    let refusal = session.refused("COMMIT /* idem */").await?;
    ensure!(refusal.sqlstate == "23505", "{refusal:?}");
    is_rolled_back(&session, "COMMIT /* idem */").await?;
    session.run(BEGIN).await?;
    let refusal = session.refused("COMMIT").await?;
    ensure!(refusal.sqlstate == "2D000", "{refusal:?}");
    Ok(())
}

/// After the end of the guarded transaction a marked COMMIT fails with 25P01, so a second
/// transaction of the handler is not committed, and a silent success is not taken for a commit. It
/// also fails on another connection, to which a pooler can switch.
#[tokio::test]
async fn i10_marked_commit_fails_after_the_end() -> Result<()> {
    let (db, session) = session("marked_ended").await?;
    for sql in [
        "ROLLBACK",
        "ROLLBACK; BEGIN; INSERT INTO work VALUES ('n')",
        "ROLLBACK; BEGIN; SELECT idem_try_claim('n', 'd')",
        "ROLLBACK AND CHAIN; INSERT INTO work VALUES ('n')",
        "SELECT idem_allow_commit(); COMMIT; BEGIN; DELETE FROM work",
        "ROLLBACK; BEGIN; SELECT 1 / 0",
    ] {
        session.run(BEGIN).await?;
        let _ = session.batch_execute(sql).await;
        let refusal = session.refused("COMMIT /* idem */").await?;
        ensure!(refusal.sqlstate == "25P01", "{sql}: {refusal:?}");
        ensure!(refusal.hint.contains("ROLLBACK"), "{sql}: {refusal:?}");
        session.run("ROLLBACK").await?;
    }
    assert_eq!(session.text("SELECT count(*) FROM work").await?, "0");
    let other = db.connect().await?;
    let refusal = other.refused("COMMIT /* idem */").await?;
    ensure!(refusal.sqlstate == "25P01", "{refusal:?}");
    Ok(())
}

/// In a failed transaction a marked COMMIT fails with 25P02 instead of being a silent ROLLBACK, also
/// if a savepoint is still open. After ROLLBACK TO the savepoint it commits.
#[tokio::test]
async fn i10_marked_commit_fails_in_a_failed_transaction() -> Result<()> {
    let (_db, session) = session("marked_failed").await?;
    for begin in [BEGIN.to_owned(), format!("{BEGIN}; SAVEPOINT open")] {
        session.run(&begin).await?;
        assert_eq!(session.refused("SELECT 1 / 0").await?.sqlstate, "22012");
        for _ in 0..2 {
            let refusal = session.refused("COMMIT /* idem */").await?;
            ensure!(refusal.sqlstate == "25P02", "{refusal:?}");
            ensure!(refusal.hint.contains("ROLLBACK"), "{refusal:?}");
        }
        session.run("ROLLBACK").await?;
        is_rolled_back(&session, "COMMIT").await?;
    }
    session.run(&format!("{BEGIN}; SAVEPOINT open")).await?;
    assert_eq!(session.refused("SELECT 1 / 0").await?.sqlstate, "22012");
    session
        .run("ROLLBACK TO SAVEPOINT open; COMMIT /* idem */")
        .await?;
    assert_eq!(session.text("SELECT idem_is_claimed('m', 'd')").await?, "t");
    Ok(())
}

/// A marked COMMIT fails with 25000 if the functions of idem cannot be called any more: the role or
/// the search_path would otherwise apply to the next user of the connection. A change that still
/// allows the calls is accepted.
#[tokio::test]
async fn i10_marked_commit_fails_with_changed_settings() -> Result<()> {
    let (db, session) = session("marked_settings").await?;
    let (other, member) = (db.role("other").await?, db.role("member").await?);
    session
        .run(&format!(
            "CREATE SCHEMA tenant; SELECT idem_grant('{member}', 'consumer')"
        ))
        .await?;
    for (change, sqlstate) in [
        (format!("SET LOCAL ROLE {other}"), Some("25000")),
        (format!("SET ROLE {other}"), Some("25000")),
        ("SET LOCAL search_path = tenant".into(), Some("25000")),
        ("SET search_path = tenant".into(), Some("25000")),
        (format!("SET LOCAL ROLE {member}"), None),
        ("SET LOCAL search_path = tenant, public".into(), None),
        (format!("SET ROLE {other}; RESET ROLE"), None),
    ] {
        session.run(BEGIN).await?;
        session.run(&change).await?;
        match sqlstate {
            Some(sqlstate) => {
                let refusal = session.refused("COMMIT /* idem */").await?;
                ensure!(refusal.sqlstate == sqlstate, "{change}: {refusal:?}");
                session
                    .run("ROLLBACK; RESET ROLE; RESET search_path")
                    .await?;
                is_rolled_back(&session, &change).await?;
            }
            None => {
                session
                    .run("COMMIT /* idem */")
                    .await
                    .with_context(|| change.clone())?;
                session.run("SELECT idem_forget('m', 'd')").await?;
            }
        }
    }
    Ok(())
}

/// The COMMIT of the handler fails, and the handler ignores it: the marked COMMIT then reports that
/// nothing is committed.
#[tokio::test]
async fn i10_marked_commit_after_a_rejected_one_fails() -> Result<()> {
    let (_db, session) = session("marked_after").await?;
    session.run(BEGIN).await?;
    assert_eq!(session.refused("COMMIT").await?.sqlstate, "2D000");
    let refusal = session.refused("COMMIT /* idem */").await?;
    ensure!(refusal.sqlstate == "25P02", "{refusal:?}");
    session.run("COMMIT").await?;
    is_rolled_back(&session, "COMMIT").await
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
