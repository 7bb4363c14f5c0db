//! A claim that is the only thing its transaction does would commit before the work is done.

use anyhow::{Context, Result, ensure};
use idem_tests::bench::wire;
use idem_tests::harness::{Database, Refusal, Session};

/// Statements that only claim.
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
];

/// What users have beside their claims.
const USERS_OWN: &str = "
    CREATE TABLE work (id text);
    CREATE TABLE incoming (id text);
    INSERT INTO incoming VALUES ('m');
    CREATE FUNCTION do_work(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO work VALUES (id)';
    CREATE FUNCTION handle(id text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        IF idem_try_claim(id, 'd') THEN
            INSERT INTO work VALUES (id);
            RETURN true;
        END IF;
        RETURN false;
    END $$;";

/// Statements whose transaction can do the work too; each claims the message m.
const SHARED: &[&str] = &[
    "BEGIN; SELECT idem_try_claim('m', 'd'); INSERT INTO work VALUES ('m'); COMMIT",
    "SELECT idem_try_claim('m', 'd'); INSERT INTO work VALUES ('m')",
    "INSERT INTO work SELECT 'm' WHERE idem_try_claim('m', 'd')",
    "WITH c AS (SELECT idem_try_claim('m', 'd') AS claimed) INSERT INTO work SELECT 'm' FROM c WHERE claimed",
    "UPDATE incoming SET id = id WHERE idem_try_claim(id, 'd')",
    "SELECT idem_try_claim('m', 'd'), do_work('m')",
    "SELECT handle('m')",
    "SELECT idem_try_claim(id, 'd') FROM incoming",
    "CREATE TABLE claimed AS SELECT idem_try_claim('m', 'd')",
    "DO $$ BEGIN PERFORM idem_try_claim('m', 'd'); INSERT INTO work VALUES ('m'); END $$",
    "DO $$ BEGIN PERFORM idem_try_claim('m', 'd'); EXCEPTION WHEN division_by_zero THEN NULL; END $$",
    "DECLARE c CURSOR WITH HOLD FOR SELECT idem_try_claim('m', 'd')",
    r#"SELECT idem_try_record('m', 'd', '{"topic": "t", "payload": 1}')"#,
];

async fn on_defaults(name: &str) -> Result<(Database, Session)> {
    let db = Database::with_idem(name).await?;
    let session = db.connect_on_defaults().await?;
    session.run(USERS_OWN).await?;
    Ok((db, session))
}

async fn claims(session: &Session) -> Result<String> {
    session.text("SELECT count(*) FROM idem.inbox").await
}

fn check(sql: &str, refusal: &Refusal) -> Result<()> {
    ensure!(refusal.sqlstate == "25P01", "{sql}: {refusal:?}");
    ensure!(refusal.message.ends_with("is alone in its transaction"), "{sql}: {refusal:?}");
    ensure!(refusal.hint.starts_with("Send BEGIN"), "{sql}: {refusal:?}");
    Ok(())
}

/// A client that forgot BEGIN does not lose its message.
#[tokio::test]
async fn i10_lone_claim_fails() -> Result<()> {
    let (_db, session) = on_defaults("lone").await?;
    for sql in LONE {
        check(sql, &session.refused(sql).await?)?;
        let prepared = session.prepare(sql).await?;
        let Err(error) = session.query(&prepared, &[]).await else {
            anyhow::bail!("this was not refused when it was prepared: {sql}");
        };
        check(sql, &Refusal::from(error.as_db_error().context("an error of the server")?))?;
        assert_eq!(claims(&session).await?, "0", "{sql}");
    }
    Ok(())
}

/// Whatever can do the work in the same transaction is accepted.
#[tokio::test]
async fn i10_claim_that_shares_its_transaction_succeeds() -> Result<()> {
    let (_db, session) = on_defaults("shared").await?;
    for sql in SHARED {
        session.run(sql).await?;
        assert_eq!(claims(&session).await?, "1", "{sql}");
        assert_eq!(session.text("SELECT idem_forget('m', 'd')").await?, "t", "{sql}");
    }
    Ok(())
}

/// In a pipeline the work can stand before the claim, and BEGIN can stand before both.
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
    // Nothing before it tells that more follows.
    let Err(error) = client.pipeline(&[claim, work]) else {
        anyhow::bail!("a claim that opens a pipeline without BEGIN was not refused");
    };
    ensure!(format!("{error:#}").contains("25P01"), "{error:#}");
    assert_eq!(session.text("SELECT count(*) FROM work").await?, "2");
    assert_eq!(claims(&session).await?, "0");
    Ok(())
}

#[tokio::test]
async fn i10_lone_claim_warns_or_is_allowed_by_setting() -> Result<()> {
    let (_db, session) = on_defaults("lone_setting").await?;
    session.run("SET idem.lone_claims = warn").await?;
    assert_eq!(session.text("SELECT idem_try_claim('m', 'd')").await?, "t");
    let warnings = session.notices();
    let [warning] = warnings.as_slice() else {
        anyhow::bail!("one warning: {warnings:?}");
    };
    assert_eq!(warning.severity, "WARNING");
    check("warn", warning)?;

    session.run("SET idem.lone_claims = allow").await?;
    assert_eq!(session.text("SELECT idem_try_claim('m2', 'd')").await?, "t");
    assert_eq!(session.notices(), []);
    assert_eq!(session.refused("SET idem.lone_claims = off").await?.sqlstate, "22023");
    Ok(())
}

/// BEGIN and the claim travel together; when BEGIN fails, the claim must not commit by itself.
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
        session.run(&format!("SET idem.lone_claims = {setting}")).await?;
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
