//! Tests of the fencing token: a consumer that has lost its lease writes nothing.

use anyhow::{Context, Result, ensure};
use idem_testkit::{Database, Session};

/// Acquires a lease of the given length. Returns the token.
pub async fn acquire(session: &Session, id: &str, lease: &str) -> Result<String> {
    let result = session
        .text(&format!(
            "SELECT outcome, token FROM idem_acquire('{id}', 'work', '{lease}')"
        ))
        .await?;
    let token = result
        .strip_prefix("acquired|")
        .with_context(|| result.clone())?;
    Ok(token.to_owned())
}

/// Returns the numbers of claims, effects and pending messages.
async fn state(session: &Session) -> Result<String> {
    session
        .text(
            "SELECT (SELECT count(*) FROM idem.inbox), (SELECT count(*) FROM idem.outbox_0), \
                    (SELECT count(*) FROM idem.pending_0) + (SELECT count(*) FROM idem.pending_1)",
        )
        .await
}

#[tokio::test]
async fn lost_lease_fails_and_writes_nothing() -> Result<()> {
    let db = Database::with_idem("fence").await?;
    let (first, second) = (db.connect().await?, db.connect().await?);
    let effects = r#"[{"topic": "t", "payload": 1}]"#;
    let old = acquire(&first, "m", "1 ms").await?;
    first.run("SELECT pg_sleep(0.01)").await?;
    let new = acquire(&second, "m", "1 hour").await?;
    ensure!(old != new);
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        first
            .run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1"))
            .await?;
        let refusal = first
            .refused(&format!(
                "SELECT idem_complete('m', 'work', {old}, '{effects}')"
            ))
            .await?;
        assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
        ensure!(!refusal.hint.is_empty());
        first.run("ROLLBACK").await?;
    }
    for statement in [
        format!("SELECT idem_extend('m', 'work', {old})"),
        format!("SELECT idem_release('m', 'work', {old}, 'late')"),
        format!("SELECT idem_complete('m', 'other', {new})"),
        format!("SELECT idem_complete('unknown', 'work', {new})"),
    ] {
        assert_eq!(
            first.refused(&statement).await?.sqlstate,
            "55000",
            "{statement}"
        );
    }
    assert_eq!(state(&first).await?, "0|0|1");
    second
        .run(&format!(
            "SELECT idem_complete('m', 'work', {new}, '{effects}')"
        ))
        .await?;
    assert_eq!(state(&first).await?, "1|1|0");
    // A completed message cannot be completed again, even by the session that completed it.
    let again = second
        .refused(&format!("SELECT idem_complete('m', 'work', {new})"))
        .await?;
    assert_eq!(again.sqlstate, "55000");
    Ok(())
}

#[tokio::test]
async fn complete_commits_with_the_writes_of_the_caller() -> Result<()> {
    let db = Database::with_idem("together").await?;
    let session = db.connect().await?;
    session.run("CREATE TABLE business (n int)").await?;
    let token = acquire(&session, "m", "1 hour").await?;
    let complete = format!(
        "SELECT idem_complete('m', 'work', {token}, '[{{\"topic\": \"t\", \"payload\": 1}}]')"
    );
    let business = "INSERT INTO business VALUES (1)";
    let seen = "SELECT (SELECT count(*) FROM business), \
                (SELECT outcome FROM idem_acquire('m', 'work')), idem_is_claimed('m', 'work')";

    session
        .run(&format!("BEGIN; {business}; {complete}; ROLLBACK"))
        .await?;
    assert_eq!(session.text(seen).await?, "0|in_progress|f");
    session
        .run(&format!(
            "BEGIN; {business}; SAVEPOINT s; {complete}; ROLLBACK TO s; COMMIT"
        ))
        .await?;
    assert_eq!(session.text(seen).await?, "1|in_progress|f");
    session
        .run(&format!(
            "BEGIN ISOLATION LEVEL SERIALIZABLE; {complete}; {business}; COMMIT"
        ))
        .await?;
    assert_eq!(session.text(seen).await?, "2|duplicate|t");
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_effects('m', 'work')")
            .await?,
        "1"
    );
    Ok(())
}

/// Leases use the clock of the server, which advances during a transaction, and not `now()`, which
/// does not.
#[tokio::test]
async fn lease_uses_the_clock_of_the_server() -> Result<()> {
    let db = Database::with_idem("clock").await?;
    let (holder, other) = (db.connect().await?, db.connect().await?);
    other
        .run("SET TimeZone = 'Pacific/Auckland'; BEGIN; SELECT now()")
        .await?;
    holder.run("SET TimeZone = 'America/Lima'").await?;
    acquire(&holder, "m", "300 ms").await?;
    assert_eq!(
        other
            .text(
                "SELECT outcome, retry_after BETWEEN interval '0' AND interval '300 ms' \
                 FROM idem_acquire('m', 'work')"
            )
            .await?,
        "in_progress|t"
    );
    other.run("SELECT pg_sleep(0.4)").await?;
    assert_eq!(
        other
            .text("SELECT outcome, attempt, last_error FROM idem_acquire('m', 'work')")
            .await?,
        "acquired|2|the lease expired"
    );
    other.run("COMMIT").await?;
    Ok(())
}

/// The holder of an expired lease can complete its message as long as no other consumer has leased
/// or claimed the message.
#[tokio::test]
async fn expired_lease_can_complete_while_message_is_not_taken() -> Result<()> {
    let db = Database::with_idem("late").await?;
    let session = db.connect().await?;
    let token = acquire(&session, "m", "1 ms").await?;
    session.run("SELECT pg_sleep(0.01)").await?;
    session
        .run(&format!("SELECT idem_complete('m', 'work', {token})"))
        .await?;
    let token = acquire(&session, "n", "1 ms").await?;
    session.run("SELECT pg_sleep(0.01)").await?;
    assert_eq!(
        session.text("SELECT idem_try_claim('n', 'work')").await?,
        "t"
    );
    let refusal = session
        .refused(&format!("SELECT idem_complete('n', 'work', {token})"))
        .await?;
    assert_eq!(refusal.sqlstate, "55000");
    Ok(())
}

/// A claim that finds the lease writes nothing. So the holder completes the message although the
/// transaction of that claim is still open.
#[tokio::test]
async fn refused_claim_in_open_transaction_stops_no_completion() -> Result<()> {
    let db = Database::with_idem("refused_open").await?;
    let (holder, claimer) = (db.connect().await?, db.connect().await?);
    for (id, claim) in [
        (
            "a",
            "SELECT outcome FROM idem_claim('a', 'work', wait => false)",
        ),
        (
            "b",
            "SELECT outcome FROM idem_claim_in_block('b', 'work', wait => false)",
        ),
    ] {
        let token = acquire(&holder, id, "1 hour").await?;
        claimer.run("BEGIN").await?;
        assert_eq!(claimer.text(claim).await?, "in_progress");
        assert_eq!(
            claimer
                .text("SELECT pg_current_xact_id_if_assigned() IS NULL")
                .await?,
            "t",
            "the claim wrote nothing"
        );
        holder
            .run(&format!("SELECT idem_complete('{id}', 'work', {token})"))
            .await?;
        assert_eq!(
            claimer.text(claim).await?,
            "duplicate",
            "the message is done"
        );
        claimer.run("COMMIT").await?;
    }
    assert_eq!(state(&holder).await?, "2|0|0");
    Ok(())
}
