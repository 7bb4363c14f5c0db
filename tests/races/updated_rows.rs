//! Tests of a dirty scan during an update: the old version of the row is dead, and the index entry
//! of the new version was inserted after the scan copied the page.

use anyhow::Result;
use idem_testkit::{Database, Pause, Session, until};

use super::claims::start;

/// Leases a message and waits until the lease has expired.
async fn ended_lease(session: &Session) -> Result<()> {
    session
        .run("SELECT idem_acquire('m', 'orders', '1 millisecond')")
        .await?;
    until("the lease has expired", async || {
        let ended = session
            .text("SELECT due_at < clock_timestamp() FROM idem.pending_0")
            .await?;
        Ok(ended == "t")
    })
    .await
}

/// I1: a lease is renewed after the claimer has copied the index page and before it reads the row.
/// Only the lease succeeds, and the claim returns `in_progress`.
#[tokio::test]
async fn i1_claim_finds_a_lease_that_is_renewed_meanwhile() -> Result<()> {
    let db = Database::with_idem("renewed").await?;
    let (leaser, claimer) = (db.connect().await?, db.connect().await?);
    ended_lease(&leaser).await?;
    let seen_free = Pause::hold(&db, "acquire: before update").await?;
    seen_free.arm(&leaser).await?;
    let leaser_pid = leaser.pid().await?;
    let lease = start(
        leaser,
        "SELECT outcome FROM idem_acquire('m', 'orders', '1 hour')",
    );
    seen_free.until_reached(leaser_pid).await?;

    let inserted = Pause::hold(&db, "claim: before second look").await?;
    claimer
        .run("SET idem.pause_at = 'claim: before second look, lookup: before heap fetch'")
        .await?;
    let claimer_pid = claimer.pid().await?;
    let claim = start(
        claimer,
        "BEGIN; SELECT outcome FROM idem_claim('m', 'orders', wait => false); COMMIT",
    );
    inserted.until_reached(claimer_pid).await?;
    let page_copied = Pause::hold(&db, "lookup: before heap fetch").await?;
    inserted.release().await?;
    page_copied.until_reached(claimer_pid).await?;

    seen_free.release().await?;
    assert_eq!(lease.await??, "acquired");
    page_copied.release().await?;
    assert_eq!(claim.await??, "in_progress");
    Ok(())
}

/// A lease is extended between the copy of the index page and the read of the row. The holder of
/// the lease can still complete the message.
#[tokio::test]
async fn completion_finds_a_lease_that_is_extended_meanwhile() -> Result<()> {
    let db = Database::with_idem("extended").await?;
    let (holder, other) = (db.connect().await?, db.connect().await?);
    let token = holder
        .text("SELECT token FROM idem_acquire('m', 'orders', '1 hour')")
        .await?;
    // Let the session cache the destination, so that its next look-up is that of the pending row.
    assert_eq!(
        holder.text("SELECT idem_is_claimed('m', 'orders')").await?,
        "f"
    );
    let page_copied = Pause::hold(&db, "lookup: before heap fetch").await?;
    page_copied.arm(&holder).await?;
    let pid = holder.pid().await?;
    let complete = format!("SELECT cardinality(idem_complete('m', 'orders', {token}))");
    let completed = tokio::spawn(async move { holder.text(&complete).await });
    page_copied.until_reached(pid).await?;

    other
        .run(&format!(
            "SELECT idem_extend('m', 'orders', {token}, '2 hours')"
        ))
        .await?;
    page_copied.release().await?;
    assert_eq!(completed.await??, "0");
    assert_eq!(
        other.text("SELECT idem_is_claimed('m', 'orders')").await?,
        "t"
    );
    Ok(())
}

/// I1: a destination is configured between the copy of the index page and the read of the row. The
/// claims of the destination are still found.
#[tokio::test]
async fn i1_lookup_finds_a_destination_configured_meanwhile() -> Result<()> {
    let db = Database::with_idem("configured").await?;
    let (other, reader) = (db.connect().await?, db.connect().await?);
    // An index on a changed column gives the new version of the row its own index entries, as an
    // update on a full page does.
    other
        .run(
            "CREATE INDEX ON idem.destination (ring); BEGIN; \
             SELECT idem_try_claim('m', 'orders'); COMMIT",
        )
        .await?;
    let page_copied = Pause::hold(&db, "lookup: before heap fetch").await?;
    page_copied.arm(&reader).await?;
    let pid = reader.pid().await?;
    let found = start(reader, "SELECT idem_is_claimed('m', 'orders')");
    page_copied.until_reached(pid).await?;

    other
        .run("SELECT idem_configure('orders', '30 days')")
        .await?;
    page_copied.release().await?;
    assert_eq!(found.await??, "t");
    Ok(())
}
