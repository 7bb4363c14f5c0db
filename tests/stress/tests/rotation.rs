//! Tests of I1 during rotation: a message is claimed once while the ring rotates, sessions are
//! killed and the server crashes.
//!
//! The checker of these tests must detect broken variants of the protocol.

use std::sync::Arc;

use anyhow::Result;
use idem_stress::{Config, Coverage, Goal, Outcome, duration, run};

/// I1, I6: each message is claimed once and its claim is kept for the retention, while the ring
/// rotates, sessions are killed and the server crashes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_claims_are_unique_and_kept_during_rotation_and_kills() -> Result<()> {
    let least = Coverage {
        rotations: 60,
        terminated: 20,
        crashed: 2,
        moved: 5,
        imported: 100,
        complete_filters: 50,
        segments: 50,
        ..Coverage::default()
    };
    let config = Config::healthy(Goal::Covered {
        run_for: duration(),
        least,
    });
    let cluster = Arc::new(config.cluster("stress")?);
    let outcome = run(Arc::clone(&cluster), config).await?;
    report("idem", &outcome);
    assert!(outcome.verdict.is_clean(), "{}", outcome.verdict);

    // Without enough of these events the test would show nothing.
    assert!(outcome.coverage.reaches(&least), "{outcome:?}");
    assert!(outcome.handled > 1_000, "{outcome:?}");
    assert!(outcome.duplicates > 1_000, "{outcome:?}");
    assert!(
        outcome.verdict.claimed_again > 50,
        "the ring has removed too few claims: {outcome:?}"
    );
    assert!(outcome.verdict.telling_looks > 1_000, "{outcome:?}");
    Ok(())
}

/// The checker detects a rotation without the opening step and without a fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_checker_detects_rotation_without_opening_and_fence() -> Result<()> {
    assert_detected("without fence", Config::without_fence()).await
}

/// The checker detects a claim that reads the state of the ring by the snapshot of its transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_checker_detects_ring_state_read_by_own_snapshot() -> Result<()> {
    assert_detected("own snapshot", Config::by_own_snapshot()).await
}

/// The checker detects rows that are missing in the filter of their slice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_checker_detects_filter_that_misses_imported_rows() -> Result<()> {
    assert_detected("without invalidation", Config::without_invalidation()).await
}

/// I1, I4, I6: the invariants hold when leases, received messages and external calls use the same
/// messages as the claims, while the tables of pending messages rotate too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i4_i6_hold_with_leases_and_received_messages() -> Result<()> {
    let least = Coverage {
        rotations: 20,
        terminated: 10,
        crashed: 1,
        pending_rotations: 1,
        payload_steps: 1,
        segments: 20,
        ..Coverage::default()
    };
    let config = Config::outside(Goal::Covered {
        run_for: duration(),
        least,
    });
    let cluster = Arc::new(config.cluster("stress-outside")?);
    let outcome = run(Arc::clone(&cluster), config).await?;
    report("outside", &outcome);
    assert!(outcome.verdict.is_clean(), "{}", outcome.verdict);
    assert!(outcome.outside.is_clean(), "{}", outcome.outside);

    let outside = &outcome.outside;
    assert!(
        outside.leases > 200
            && outside.completed > 50
            && outside.calls > 50
            && outside.received > 50,
        "{outside}"
    );
    assert!(outcome.coverage.reaches(&least), "{outcome:?}");
    assert!(
        outcome.handled > 300 && outcome.duplicates > 100,
        "{outcome:?}"
    );
    Ok(())
}

/// The checker detects a lease without a check of its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_checker_detects_lease_without_token_check() -> Result<()> {
    let config = Config::without_tokens();
    let cluster = Arc::new(config.cluster("stress-unfenced")?);
    let outcome = run(cluster, config).await?;
    report("without tokens", &outcome);
    assert!(!outcome.outside.zombies.is_empty(), "{}", outcome.outside);
    // Only the leases fail: each message is still claimed once.
    assert!(outcome.verdict.is_clean(), "{}", outcome.verdict);
    Ok(())
}

/// Runs a broken variant and checks that the checker reports doubled claims and no other failure.
async fn assert_detected(name: &str, config: Config) -> Result<()> {
    let cluster = Arc::new(config.cluster("stress-broken")?);
    let outcome = run(cluster, config).await?;
    report(name, &outcome);
    assert!(!outcome.verdict.doubled.is_empty(), "{}", outcome.verdict);
    // Doubled claims are the only failure.
    assert!(
        outcome.verdict.lost.is_empty() && outcome.verdict.risen.is_empty(),
        "{}",
        outcome.verdict
    );
    Ok(())
}

fn report(name: &str, outcome: &Outcome) {
    println!(
        "{name}: {:.0?}, {:?}, {} handled, {} duplicates; {}",
        outcome.took, outcome.coverage, outcome.handled, outcome.duplicates, outcome.verdict
    );
    if outcome.outside.leases > 0 {
        println!("  {}", outcome.outside);
    }
}
