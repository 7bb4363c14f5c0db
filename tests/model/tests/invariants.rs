//! The model keeps the invariants in every order of its steps, and reaches what they are about.

use idem_model::properties::INVARIANTS;
use idem_model::{Claims, Rule};
use stateright::{Checker, HasDiscoveries, Model};

/// Asserts that no order of the steps breaks an invariant, and that the model reaches the states
/// that the invariants are about.
fn assert_invariants_hold(model: Claims) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// I1, I3, I6, I7, I8: two claimers, three rotations, a row that another command inserts, and at
/// most one crash of the server, after any step.
#[test]
fn i1_message_is_claimed_once_in_every_order_of_steps() {
    assert_invariants_hold(Claims {
        crashes: 1,
        ..Claims::WHOLE
    });
}

/// I1, I3: two claimers, two advances, one rotation, a row that another command inserts, and at
/// most one crash.
#[test]
fn i1_segments_and_rotations_break_no_invariant() {
    assert_invariants_hold(Claims {
        rotations: 1,
        advances: 2,
        crashes: 1,
        ..Claims::WHOLE
    });
}

/// Without a crash, with one advance, and with a slice that takes claims again, so that its filter
/// belongs to earlier claims.
#[test]
fn i1_slice_that_takes_claims_again_breaks_no_invariant() {
    assert_invariants_hold(Claims {
        rotations: 5,
        advances: 1,
        copies: false,
        ..Claims::WHOLE
    });
}

/// Three claimers, one advance and one rotation, so that three states are used while two claimers
/// wait for each other.
#[test]
fn i1_three_claimers_claim_a_message_once() {
    assert_invariants_hold(Claims {
        claimers: 3,
        rotations: 1,
        advances: 1,
        copies: false,
        ..Claims::WHOLE
    });
}

/// The checker finds each rule that is left out within the bounds of the tests above.
#[test]
fn i1_checker_finds_each_rule_that_is_left_out() {
    for rule in Rule::ALL {
        let checker = Claims::without(rule)
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let found = checker.discoveries();
        let is_found = found.keys().any(|name| INVARIANTS.contains(name));
        assert!(is_found, "{rule:?}");
    }
}
