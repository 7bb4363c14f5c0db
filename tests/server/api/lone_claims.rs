//! Tests of lone claims. A lone claim is alone in its transaction. It fails, because it would
//! commit before the message is processed.

use anyhow::{Context, Result, ensure};
use idem_bench::wire;
use idem_testkit::{Database, Refusal, Session};

/// Statements that only claim, which is an error.
const LONE: &[&str] = &[
    "SELECT idem_try_claim('m', 'd')",
    "SELECT idem_try_claim('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'd')",
    "SELECT idem_try_claim('m', 'd') AS claimed, now()",
    "SELECT idem_try_claim('m', 'd'), idem_try_claim('m2', 'd')",
    "SELECT idem_try_claim('m', 'd') AND NOT idem_is_claimed('m2', 'd')",
    "SELECT CASE WHEN idem_try_claim('m', 'd') THEN 'new' ELSE 'known' END",
    "SELECT 1 WHERE idem_try_claim('m', 'd')",
    "SELECT * FROM idem_try_claim('m', 'd')",
    "SELECT idem_try_claim('m' || n, 'd') FROM generate_series(1, 3) n",
    "SELECT * FROM idem_claim('m', 'd')",
    "SELECT * FROM idem_claim('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'd')",
    "SELECT outcome FROM idem_claim('m', 'd') WHERE outcome = 'claimed'",
    "SELECT (idem_claim('m', 'd')).outcome",
    "SELECT idem_try_claim_batch('{m,m2}', 'd')",
    "SELECT unnest(idem_try_claim_batch('{m,m2}', 'd'))",
    "SELECT * FROM unnest(idem_try_claim_batch('{m,m2}', 'd')) WITH ORDINALITY",
    "SELECT idem_try_claim_uuid_batch('{0192f3a4-0000-7abc-8def-0123456789ab}', 'd')",
    "SELECT idem_try_claim(id, 'd') FROM (VALUES ('m'), ('m2')) v (id)",
    "SELECT idem_try_claim('m', 'd') LIMIT 1",
    "SELECT unnest(idem_try_claim_batch('{m,m2}', 'd')) LIMIT 1 OFFSET 0",
];

/// The tables and functions of an application.
const USER_OBJECTS: &str = "
    CREATE TABLE work (id text);
    CREATE TABLE incoming (id text);
    INSERT INTO incoming VALUES ('m');
    CREATE FUNCTION claim_by_cursor() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        c CURSOR FOR SELECT idem_try_claim('m', 'd');
        claimed boolean;
    BEGIN
        OPEN c;
        FETCH c INTO claimed;
        INSERT INTO work VALUES ('m');
    END $$;
    CREATE FUNCTION do_work(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO work VALUES (id)';
    CREATE FUNCTION handle(id text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        IF idem_try_claim(id, 'd') THEN
            INSERT INTO work VALUES (id);
            RETURN true;
        END IF;
        RETURN false;
    END $$;";

/// Statements that claim message m and process it in the same transaction: they write the message
/// to table work.
const WORKING: &[&str] = &[
    "BEGIN; SELECT idem_try_claim('m', 'd'); INSERT INTO work VALUES ('m'); COMMIT",
    "SELECT idem_try_claim('m', 'd'); INSERT INTO work VALUES ('m')",
    "INSERT INTO work SELECT 'm' WHERE idem_try_claim('m', 'd')",
    "WITH c AS (SELECT idem_try_claim('m', 'd') AS claimed) INSERT INTO work SELECT 'm' FROM c
      WHERE claimed",
    "SELECT idem_try_claim('m', 'd'), do_work('m')",
    "SELECT handle('m')",
    "SELECT CASE WHEN idem_try_claim('m', 'd') THEN (SELECT do_work('m') IS NULL) END",
    "SELECT idem_try_claim('m', 'd'), (SELECT do_work('m') IS NULL)",
    "SELECT idem_try_claim(n, 'd'), (SELECT do_work(n)) FROM unnest('{m}'::text[]) n",
    "SELECT claim_by_cursor()",
    "DO $$ BEGIN PERFORM idem_try_claim('m', 'd'); INSERT INTO work VALUES ('m'); END $$",
];

/// Statements that claim message m and write nothing to table work. They are accepted, because such
/// a statement could process the message or record it for later processing.
const ACCEPTED: &[&str] = &[
    "SELECT idem_try_claim(id, 'd') FROM incoming",
    "SELECT idem_try_claim('m', 'd') WHERE EXISTS (SELECT FROM incoming)",
    "UPDATE incoming SET id = id WHERE idem_try_claim(id, 'd')",
    "CREATE TABLE claimed AS SELECT idem_try_claim('m', 'd')",
    "SELECT CASE WHEN idem_try_claim('m', 'd') THEN idem_send('t', '1') END",
    "SELECT idem_try_claim('m', 'd') AND idem_receive('m', 'next', '1')",
    r#"SELECT CASE WHEN idem_try_claim('m', 'd') THEN idem_record_effects('m', 'd',
           '{"topic": "t", "payload": 1}') END"#,
    "DO $$ BEGIN PERFORM idem_try_claim('m', 'd'); EXCEPTION WHEN division_by_zero THEN NULL;
     END $$",
    "DECLARE c CURSOR WITH HOLD FOR SELECT idem_try_claim('m', 'd')",
    r#"SELECT idem_try_record('m', 'd', '{"topic": "t", "payload": 1}')"#,
];

async fn on_defaults(name: &str) -> Result<(Database, Session)> {
    let db = Database::with_idem(name).await?;
    let session = db.connect_on_defaults().await?;
    session.run(USER_OBJECTS).await?;
    Ok((db, session))
}

async fn claims(session: &Session) -> Result<String> {
    session.text("SELECT count(*) FROM idem.inbox").await
}

/// Fails if this is not the error of a lone claim.
fn ensure_refused_as_lone(sql: &str, refusal: &Refusal) -> Result<()> {
    ensure!(refusal.sqlstate == "25P01", "{sql}: {refusal:?}");
    ensure!(
        refusal.message.ends_with("is alone in its transaction"),
        "{sql}: {refusal:?}"
    );
    ensure!(refusal.hint.starts_with("Send BEGIN"), "{sql}: {refusal:?}");
    Ok(())
}

/// I10: a lone claim fails with 25P01, so a client without BEGIN does not lose its message.
#[tokio::test]
async fn i10_lone_claim_fails() -> Result<()> {
    let (_db, session) = on_defaults("lone").await?;
    for sql in LONE {
        ensure_refused_as_lone(sql, &session.refused(sql).await?)?;
        let prepared = session.prepare(sql).await?;
        let Err(error) = session.query(&prepared, &[]).await else {
            anyhow::bail!("the prepared statement did not fail: {sql}");
        };
        ensure_refused_as_lone(
            sql,
            &Refusal::from(error.as_db_error().context("not an error of the server")?),
        )?;
        assert_eq!(claims(&session).await?, "0", "{sql}");
    }
    Ok(())
}

/// I10: a claim succeeds when its statement or query string can also process the message, prepared
/// or not.
#[tokio::test]
async fn i10_claim_that_shares_its_transaction_succeeds() -> Result<()> {
    let (_db, session) = on_defaults("shared").await?;
    for sql in WORKING {
        session.run(sql).await?;
        assert_done(&session, sql, "1").await?;
        // A string with two statements cannot be prepared.
        if !sql.contains("; ") {
            let prepared = session.prepare(sql).await?;
            session
                .query(&prepared, &[])
                .await
                .with_context(|| (*sql).to_owned())?;
            assert_done(&session, sql, "1").await?;
        }
    }
    for sql in ACCEPTED {
        session.run(sql).await?;
        assert_done(&session, sql, "0").await?;
    }
    Ok(())
}

/// Asserts that one message is claimed and that table work has `rows` rows. Removes the claim and
/// the rows.
async fn assert_done(session: &Session, sql: &str, rows: &str) -> Result<()> {
    assert_eq!(claims(session).await?, "1", "{sql}");
    assert_eq!(
        session.text("SELECT count(*) FROM work").await?,
        rows,
        "{sql}"
    );
    session.run("DELETE FROM work").await?;
    assert_eq!(
        session.text("SELECT idem_forget('m', 'd')").await?,
        "t",
        "{sql}"
    );
    Ok(())
}

/// I10: a lone claim also fails in a named portal. Some drivers name the portal of every statement.
#[tokio::test]
async fn i10_lone_claim_in_a_named_portal_fails() -> Result<()> {
    let (db, session) = on_defaults("portal").await?;
    let mut client = wire::Session::connect(db.cluster(), db.name())?;
    let Err(error) = client.execute_in_portal("B_1", "SELECT idem_try_claim('m', 'd')") else {
        anyhow::bail!("a lone claim in a named portal did not fail");
    };
    ensure!(format!("{error:#}").contains("25P01"), "{error:#}");
    assert_eq!(claims(&session).await?, "0");
    Ok(())
}

/// I10: when a lone claim also has an error that BEGIN would not correct, it fails with the
/// SQLSTATE of that error.
#[tokio::test]
async fn i10_invalid_argument_of_a_lone_claim_is_reported_first() -> Result<()> {
    let (_db, session) = on_defaults("lone_invalid").await?;
    for (sql, sqlstate) in [
        ("SELECT idem_try_claim(NULL, 'd')", "22004"),
        ("SELECT idem_try_claim('', 'd')", "22023"),
        ("SELECT idem_try_claim('m', '')", "22023"),
        ("SELECT idem_try_claim_batch('{m,NULL}', 'd')", "22004"),
        ("SELECT idem_claim('m', 'd', fingerprint => '')", "22023"),
        ("SELECT idem_claim_in_block('m', '')", "22023"),
    ] {
        assert_eq!(session.refused(sql).await?.sqlstate, sqlstate, "{sql}");
    }
    session
        .run("SET default_transaction_read_only = on")
        .await?;
    assert_eq!(
        session
            .refused("SELECT idem_try_claim('m', 'd')")
            .await?
            .sqlstate,
        "25006"
    );
    Ok(())
}

/// I10: in a pipeline a claim succeeds after another statement, and after BEGIN.
#[tokio::test]
async fn i10_claim_inside_a_pipeline_succeeds() -> Result<()> {
    let (db, session) = on_defaults("pipeline").await?;
    let claim = "SELECT idem_try_claim('m', 'd')";
    let work = "INSERT INTO work VALUES ('m')";
    let mut client = wire::Session::connect(db.cluster(), db.name())?;
    for pipeline in [&[work, claim][..], &["BEGIN", claim, work, "COMMIT"]] {
        client.pipeline(pipeline)?;
        assert_eq!(claims(&session).await?, "1", "{pipeline:?}");
        session.run("SELECT idem_forget('m', 'd')").await?;
    }
    // This claim is the first statement of the pipeline. Nothing shows at this time that the
    // transaction has more statements, so the claim fails.
    let Err(error) = client.pipeline(&[claim, work]) else {
        anyhow::bail!("a claim that opens a pipeline without BEGIN did not fail");
    };
    ensure!(format!("{error:#}").contains("25P01"), "{error:#}");
    assert_eq!(session.text("SELECT count(*) FROM work").await?, "2");
    assert_eq!(claims(&session).await?, "0");
    Ok(())
}

/// I10: `idem.lone_claims` makes a lone claim a warning or allows it.
#[tokio::test]
async fn i10_lone_claim_warns_or_is_allowed_by_setting() -> Result<()> {
    let (_db, session) = on_defaults("lone_setting").await?;
    session.run("SET idem.lone_claims = warn").await?;
    assert_eq!(session.text("SELECT idem_try_claim('m', 'd')").await?, "t");
    let warnings = session.notices();
    let [warning] = warnings.as_slice() else {
        anyhow::bail!("there is not exactly one warning: {warnings:?}");
    };
    assert_eq!(warning.severity, "WARNING");
    ensure_refused_as_lone("warn", warning)?;
    session
        .run("SELECT idem_try_claim('many ' || n, 'd') FROM generate_series(1, 3) n")
        .await?;
    assert_eq!(session.notices().len(), 1, "a statement raises one warning");

    session.run("SET idem.lone_claims = allow").await?;
    assert_eq!(session.text("SELECT idem_try_claim('m2', 'd')").await?, "t");
    assert_eq!(session.notices(), []);
    assert_eq!(
        session
            .refused("SET idem.lone_claims = off")
            .await?
            .sqlstate,
        "22023"
    );
    Ok(())
}

/// I10: `idem_claim_in_block` fails outside a transaction block. A client sends BEGIN and this
/// claim together, and when BEGIN fails, the claim must not commit alone.
#[tokio::test]
async fn i10_claim_in_block_needs_a_transaction_block() -> Result<()> {
    let (_db, session) = on_defaults("in_block").await?;
    session
        .run(
            "CREATE FUNCTION claims() RETURNS void LANGUAGE plpgsql AS
              $$ BEGIN PERFORM idem_claim_in_block('m', 'd'); END $$",
        )
        .await?;
    for setting in ["refuse", "warn", "allow"] {
        session
            .run(&format!("SET idem.lone_claims = {setting}"))
            .await?;
        for sql in [
            "SELECT outcome FROM idem_claim_in_block('m', 'd')",
            "SELECT idem_claim_in_block('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'd')",
            "INSERT INTO work SELECT outcome::text FROM idem_claim_in_block('m', 'd')",
            "SELECT claims()",
        ] {
            let refusal = session.refused(sql).await?;
            assert_eq!(refusal.sqlstate, "25P01", "{sql}: {refusal:?}");
            ensure!(refusal.hint.starts_with("Send BEGIN"), "{sql}: {refusal:?}");
            assert_eq!(claims(&session).await?, "0", "{sql}");
        }
    }
    session.run("RESET idem.lone_claims").await?;
    assert_eq!(
        session
            .text(
                "BEGIN;
                 SELECT outcome FROM idem_claim_in_block('m', 'd', fingerprint => '\\x01');
                 SELECT outcome FROM idem_claim_in_block('m', 'd', true, '\\x02');
                 SELECT outcome FROM idem_claim_in_block('m', 'd');
                 COMMIT;
                 SELECT idem_is_claimed('m', 'd')"
            )
            .await?,
        "claimed\nmismatch\nduplicate\nt"
    );
    Ok(())
}
