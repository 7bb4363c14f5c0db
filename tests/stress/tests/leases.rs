//! Tests of I1 with leases: a lease and a claim of the same message never both succeed, also while
//! the tables of pending messages rotate and sessions are killed.
//!
//! The checker of this test must detect a broken variant: a lease that reads the inbox only before
//! it writes.

use anyhow::Result;
use idem_stress::lease::{Config, MIN_ROTATIONS, MIN_TERMINATED, run};

/// I1: of a lease and a claim of the same message at most one succeeds, while the tables of pending
/// messages rotate and sessions are killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_lease_or_claim_succeeds_never_both() -> Result<()> {
    let outcome = run("leases", Config::healthy()).await?;
    println!("{outcome:?}");
    assert!(outcome.verdict.is_clean(), "{}", outcome.verdict);

    // Without enough of these events the test would show nothing.
    assert!(outcome.verdict.has_enough_events(), "{outcome:?}");
    assert!(
        outcome.rotations >= MIN_ROTATIONS && outcome.terminated >= MIN_TERMINATED,
        "{outcome:?}"
    );
    Ok(())
}

/// The checker detects a lease that does not read the inbox again after it has written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_checker_detects_lease_without_second_inbox_look_up() -> Result<()> {
    let outcome = run("leases-broken", Config::looks_before_only()).await?;
    println!("{outcome:?}");
    assert!(outcome.verdict.two_have_won > 0, "{}", outcome.verdict);
    Ok(())
}
