//! I1 under rotation: once means once while the ring turns, sessions are killed and the server crashes.
//!
//! The same checker has to catch two broken variants of the protocol.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use idem_tests::stress::{Config, Goal, Outcome, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_once_and_for_the_retention_while_the_ring_turns_and_everything_is_killed() -> Result<()> {
    let config = Config::healthy(Goal::Turns {
        at_least: 60,
        run_for: Duration::from_secs(45),
    });
    let cluster = Arc::new(config.cluster("stress")?);
    let outcome = run(Arc::clone(&cluster), config).await?;
    report("idem", &outcome);
    assert!(outcome.verdict.is_clean(), "{}", outcome.verdict);

    // What would make this a test of nothing.
    assert!(outcome.turns >= 60, "{outcome:?}");
    assert!(outcome.handled > 1_000, "{outcome:?}");
    assert!(outcome.duplicates > 1_000, "{outcome:?}");
    assert!(
        outcome.verdict.claimed_again > 50,
        "the ring has forgotten nothing: {outcome:?}"
    );
    assert!(outcome.verdict.telling_looks > 1_000, "{outcome:?}");
    assert!(
        outcome.crashed >= 2 && outcome.terminated >= 20 && outcome.moved >= 5,
        "{outcome:?}"
    );
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
        "{name}: {} turns in {:.0?}, {} handled, {} duplicates, {} sessions ended, {} crashes, {} moves; {}",
        outcome.turns,
        outcome.took,
        outcome.handled,
        outcome.duplicates,
        outcome.terminated,
        outcome.crashed,
        outcome.moved,
        outcome.verdict
    );
}
