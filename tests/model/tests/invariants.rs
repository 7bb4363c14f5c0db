//! The model keeps the invariants in every order of its steps, and reaches what they are about.

use idem_model::{Claims, Rule};
use stateright::{Checker, HasDiscoveries, Model};

fn check(model: Claims) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// I1, I3, I6, I7, I8: two claimers, three rotations, a row that another command inserts, and at
/// most one crash of the server, after any step.
#[test]
fn i1_message_is_claimed_once_in_every_order_of_steps() {
    check(Claims {
        crashes: 1,
        ..Claims::WHOLE
    });
}

/// Without a crash, and with a slice that takes claims again, so that its filter belongs to earlier
/// claims.
#[test]
fn i1_slice_that_takes_claims_again_breaks_no_invariant() {
    check(Claims {
        rotations: 5,
        copies: false,
        ..Claims::WHOLE
    });
}

/// I1, I6: two advances of a segment, a rotation, and a crash after any step. Three states of the
/// ring are used at the same time.
#[test]
fn i1_message_in_segments_is_claimed_once() {
    check_invariants(&Claims {
        advances: 2,
        rotations: 1,
        copies: false,
        crashes: 1,
        ..Claims::WHOLE
    });
}

/// Three claimers, two rotations, and a crash after any step.
#[test]
fn i1_three_claimers_claim_a_message_once() {
    check_invariants(&Claims {
        claimers: 3,
        rotations: 2,
        copies: false,
        crashes: 1,
        ..Claims::WHOLE
    });
}

/// Checks only the invariants: these bounds do not reach everything, such as a claim that is removed
/// with its slice.
fn check_invariants(model: &Claims) {
    let checker = model.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    for (name, path) in checker.discoveries() {
        assert!(
            !Claims::is_invariant(name),
            "{name}: {:?}",
            path.into_actions()
        );
    }
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
        let is_found = found.keys().any(|name| Claims::is_invariant(name));
        assert!(is_found, "{rule:?}");
    }
}
