//! I1 under rotation: once means once while the ring turns, sessions are killed and the server
//! crashes.
//!
//! The same checker has to catch the broken variants of the protocol.

use std::sync::Arc;

use anyhow::Result;
use idem_tests::stress::{Config, Coverage, Goal, Outcome, duration, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_once_and_for_the_retention_while_the_ring_turns_and_everything_is_killed()
-> Result<()> {
    let least = Coverage {
        rotations: 60,
        terminated: 20,
        crashed: 2,
        moved: 5,
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

    // What would make this a test of nothing.
    assert!(outcome.coverage.reaches(&least), "{outcome:?}");
    assert!(outcome.handled > 1_000, "{outcome:?}");
    assert!(outcome.duplicates > 1_000, "{outcome:?}");
    assert!(
        outcome.verdict.claimed_again > 50,
        "the ring has forgotten nothing: {outcome:?}"
    );
    assert!(outcome.verdict.telling_looks > 1_000, "{outcome:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_the_checker_catches_a_rotation_without_opening_and_fence() -> Result<()> {
    caught("without fence", Config::without_fence()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_the_checker_catches_a_state_read_by_the_transactions_own_snapshot() -> Result<()> {
    caught("own snapshot", Config::by_own_snapshot()).await
}

/// Leases, received messages and journalled calls beside the claims, of the same messages, while
/// the tables of work turn too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i4_i6_once_and_nothing_lost_with_leases_and_durable_messages_mixed_in() -> Result<()> {
    let least = Coverage {
        rotations: 20,
        terminated: 10,
        crashed: 1,
        pending_rotations: 1,
        payload_steps: 1,
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_the_checker_catches_a_lease_whose_token_is_not_looked_at() -> Result<()> {
    let config = Config::without_tokens();
    let cluster = Arc::new(config.cluster("stress-unfenced")?);
    let outcome = run(cluster, config).await?;
    report("without tokens", &outcome);
    assert!(!outcome.outside.zombies.is_empty(), "{}", outcome.outside);
    // Caught for what it is: the claim is made once all the same.
    assert!(outcome.verdict.is_clean(), "{}", outcome.verdict);
    Ok(())
}

async fn caught(name: &str, config: Config) -> Result<()> {
    let cluster = Arc::new(config.cluster("stress-broken")?);
    let outcome = run(cluster, config).await?;
    report(name, &outcome);
    assert!(!outcome.verdict.doubled.is_empty(), "{}", outcome.verdict);
    // Caught for what it is, and not for something else.
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
