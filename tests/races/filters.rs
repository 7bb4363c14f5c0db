//! Tests of claims that are made while the filter of their slice is built.

use anyhow::Result;
use idem_testkit::ring::{build_filters, make_due, rotate};
use idem_testkit::{Database, Pause, Session, until};

use super::claims::start;

async fn status(session: &Session) -> Result<String> {
    session
        .text("SELECT status FROM idem.filters WHERE ring = 'standard' AND slice = 0")
        .await
}

/// Does more steps than a filter needs.
async fn build(session: &Session) -> Result<()> {
    let steps = "SELECT count(idem.build_filters(1)) FROM generate_series(1, 40)";
    session.run(steps).await
}

/// What happened to a claim that was made during the build of a filter.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The state of the filter while the claimer paused.
    status: String,
    /// Whether the message could be claimed again when its slice was sealed.
    is_claimed_again: bool,
}

/// Makes a claim that pauses at `point`, and builds the filter of its slice meanwhile. The builder
/// leaves out a rule.
async fn claim_during_the_build(point: &str, left_out: &str) -> Result<Seen> {
    let db = Database::without_worker("filter_race").await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    session
        .run(&format!("SET idem.leave_out = '{left_out}'"))
        .await?;
    // Let the session cache the rings and the destination.
    for session in [&session, &claimer] {
        let warm = "SELECT idem_try_claim(gen_random_uuid(), 'orders')";
        assert_eq!(session.text(warm).await?, "t");
    }
    let pause = Pause::hold(&db, point).await?;
    pause.arm(&claimer).await?;
    let pid = claimer.pid().await?;
    let claim = start(
        claimer,
        "BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT",
    );
    pause.until_reached(pid).await?;
    build(&session).await?;
    let status_during_pause = status(&session).await?;
    pause.release().await?;
    assert_eq!(claim.await??, "t");
    until("the filter is complete", async || {
        build(&session).await?;
        Ok(status(&session).await? == "complete")
    })
    .await?;
    make_due(&session, "standard").await?;
    for step in ["opened", "rotated", "emptied"] {
        assert_eq!(rotate(&session, "standard").await?, step);
    }
    let again = session.text("SELECT idem_try_claim('m', 'orders')").await?;
    Ok(Seen {
        status: status_during_pause,
        is_claimed_again: again == "t",
    })
}

/// I1: a claimer has passed the filter before it was prepared, so the filter does not have the
/// claim. The filter waits for the transaction of the claimer.
#[tokio::test]
async fn i1_filter_waits_for_a_claim_that_it_may_not_have() -> Result<()> {
    let seen = claim_during_the_build("claim: after hint", "").await?;
    assert_eq!((&*seen.status, seen.is_claimed_again), ("building", false));
    Ok(())
}

/// The broken variant: a filter that does not wait for the writers of its slice loses the claim.
#[tokio::test]
async fn i1_filter_that_does_not_wait_is_detected() -> Result<()> {
    let left_out = "filter: wait for writers";
    let seen = claim_during_the_build("claim: after hint", left_out).await?;
    assert_eq!((&*seen.status, seen.is_claimed_again), ("complete", true));
    Ok(())
}

/// I1: a claimer locks its slice after the filter has read the list of writers. The claimer then
/// adds its claim to the filter.
#[tokio::test]
async fn i1_claimer_that_is_in_no_list_adds_its_claim() -> Result<()> {
    let seen = claim_during_the_build("slices: before lock", "").await?;
    assert_eq!((&*seen.status, seen.is_claimed_again), ("complete", false));
    Ok(())
}

/// I1: a lease or a received message reads the filters again after its row is written. The claim was
/// made after the first look of the session, and before other sessions could see its row.
#[tokio::test]
async fn i1_pending_message_finds_a_claim_made_since_its_first_look() -> Result<()> {
    for (name, statement, result) in [
        (
            "filter_lease",
            "SELECT outcome FROM idem_acquire('m', 'orders', '1 hour')",
            "duplicate",
        ),
        (
            "filter_receive",
            "SELECT idem_receive('m', 'orders', '1'::jsonb)",
            "f",
        ),
    ] {
        let db = Database::without_worker(name).await?;
        let (session, late) = (db.connect().await?, db.connect().await?);
        session
            .run("SELECT idem_try_claim('warm', 'orders')")
            .await?;
        build_filters(&session).await?;
        let pause = Pause::hold(&db, "insert: before index").await?;
        pause.arm(&late).await?;
        let pid = late.pid().await?;
        let late = start(late, statement);
        pause.until_reached(pid).await?;
        let claim = "SELECT idem_try_claim('m', 'orders')";
        assert_eq!(session.text(claim).await?, "t", "{name}");
        assert_eq!(status(&session).await?, "complete", "{name}");
        pause.release().await?;
        assert_eq!(late.await??, result, "{name}");
    }
    Ok(())
}
