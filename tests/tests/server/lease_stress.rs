//! I1 with leases: a lease and a claim never both win, while the tables of work turn and sessions
//! are killed.
//!
//! The same checker has to catch a lease that looks at the inbox before it writes only.

use anyhow::Result;
use idem_tests::stress::lease::{Config, LEAST_TERMINATED, LEAST_TURNS, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_a_lease_and_a_claim_never_both_win_while_work_turns() -> Result<()> {
    let outcome = run("leases", Config::healthy()).await?;
    println!("{outcome:?}");
    assert!(outcome.verdict.is_clean(), "{}", outcome.verdict);

    // What would make this a test of nothing.
    let verdict = &outcome.verdict;
    assert!(
        verdict.claimed > 100 && verdict.completed > 100,
        "{outcome:?}"
    );
    assert!(
        verdict.taken_over > 50 && verdict.received > 20,
        "{outcome:?}"
    );
    assert!(
        outcome.turns >= LEAST_TURNS && outcome.terminated >= LEAST_TERMINATED,
        "{outcome:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_the_checker_catches_a_lease_that_does_not_look_again() -> Result<()> {
    let outcome = run("leases-broken", Config::looks_before_only()).await?;
    println!("{outcome:?}");
    assert!(outcome.verdict.two_have_won > 0, "{}", outcome.verdict);
    Ok(())
}
