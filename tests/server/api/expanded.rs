//! Tests of `(f(…)).*`, which PostgreSQL expands into one call for each column.

use anyhow::Result;
use idem_testkit::Database;

/// I10: a query that would call a function that writes once for each column fails, and nothing is
/// written. Without this rule the lease would be lost: `acquired` with a null token.
#[tokio::test]
async fn i10_expanded_row_of_a_function_that_writes_fails() -> Result<()> {
    let db = Database::with_idem("expanded").await?;
    let session = db.connect().await?;
    session
        .run(
            "CREATE FUNCTION expands() RETURNS text LANGUAGE plpgsql AS $$
             DECLARE r record;
             BEGIN SELECT (idem_acquire('m', 'd')).* INTO r; RETURN r.outcome; END $$;
             PREPARE acquires AS SELECT (idem_acquire($1, 'd')).*;",
        )
        .await?;
    for query in [
        "SELECT (idem_acquire('m', 'd')).*",
        "SELECT (idem_acquire('m', 'd')).token, (idem_acquire('m', 'd')).outcome",
        "SELECT (idem_acquire('m' || n, 'd')).* FROM generate_series(1, 3) n",
        "SELECT (idem_acquire(gen_random_uuid(), 'd')).*",
        "SELECT (idem_begin_call('m', 'd', 'ask')).*",
        "CREATE TABLE leases AS SELECT (idem_acquire('m', 'd')).*",
        "EXECUTE acquires('m')",
        "SELECT expands()",
    ] {
        let refusal = session.refused(query).await?;
        assert_eq!(refusal.sqlstate, "42601", "{query}: {refusal:?}");
        assert!(refusal.hint.contains("SELECT * FROM idem_"), "{refusal:?}");
    }
    assert_eq!(
        session
            .text(
                "SELECT (SELECT count(*) FROM idem.pending),
                        (SELECT count(*) FROM idem_calls('m', 'd'))"
            )
            .await?,
        "0|0"
    );
    Ok(())
}

/// Calls that are no expansion of one row are accepted: one column, several rows, other arguments,
/// and statements that follow each other.
#[tokio::test]
async fn separate_calls_of_functions_that_write_succeed() -> Result<()> {
    let db = Database::with_idem("not_expanded").await?;
    let session = db.connect().await?;
    for (query, result) in [
        (
            "SELECT outcome, token > 0 FROM idem_acquire('m1', 'd')",
            "acquired|t",
        ),
        ("SELECT (idem_acquire('m2', 'd')).outcome", "acquired"),
        (
            "SELECT (idem_acquire('m3', 'd')).outcome, (idem_acquire('m4', 'd')).outcome",
            "acquired|acquired",
        ),
        (
            "SELECT (idem_acquire('n' || n, 'd')).outcome FROM generate_series(1, 3) n",
            "acquired\nacquired\nacquired",
        ),
        (
            "SELECT (idem_begin_call('m', 'd', left('ask', 3 + 0 * n))).attempt
               FROM generate_series(1, 2) n",
            "1\n2",
        ),
    ] {
        assert_eq!(session.text(query).await?, result, "{query}");
    }
    // The same expressions, one after the other in one transaction.
    session
        .run(
            "DO $$
             DECLARE first idem_call_state; second idem_call_state; l record;
             BEGIN
                 first  := (idem_begin_call('twice', 'd', 'ask')).state;
                 second := (idem_begin_call('twice', 'd', 'ask')).state;
                 ASSERT first = 'new' AND second = 'unknown';
                 FOR n IN 1..3 LOOP
                     l := idem_acquire('p' || n, 'd');
                     ASSERT l.token IS NOT NULL;
                     l := idem_acquire('p' || n, 'd');
                     ASSERT l.outcome = 'in_progress';
                     l := idem_acquire('p' || n, 'd');
                     ASSERT l.outcome = 'in_progress';
                 END LOOP;
             END $$",
        )
        .await?;
    Ok(())
}

/// `(f(…)).*` of the other functions that return rows: a second call of a claim finds the first,
/// and a set is computed once.
#[tokio::test]
async fn expanded_rows_of_other_functions_are_harmless() -> Result<()> {
    let db = Database::with_idem("expanded_sets").await?;
    let session = db.connect().await?;
    assert_eq!(
        session
            .text(
                "BEGIN; SELECT outcome, handled_at IS NOT NULL
                          FROM (SELECT (idem_claim('m', 'd')).*) c; COMMIT"
            )
            .await?,
        "claimed|t"
    );
    session
        .run(
            r#"SELECT idem_receive('r' || n, 'd', '1'::jsonb) FROM generate_series(1, 20) n;
               SELECT idem_send('t', '1'::jsonb) FROM generate_series(1, 20)"#,
        )
        .await?;
    assert_eq!(
        session
            .text(
                "SELECT count(id), count(token), count(payload)
                   FROM (SELECT (idem_next('d', 5)).* OFFSET 0) n"
            )
            .await?,
        "5|5|5"
    );
    assert_eq!(session.text("SELECT count(*) FROM idem.leases").await?, "5");
    assert_eq!(
        session
            .text(
                "SELECT count(seq), count(DISTINCT token), count(payload)
                   FROM (SELECT (idem_relay_next('default', 0, 5)).* OFFSET 0) n"
            )
            .await?,
        "5|1|5"
    );
    Ok(())
}
