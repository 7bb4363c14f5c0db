//! Each rule of the protocol is needed: without it, these steps break an invariant.

use idem_model::Action::{
    self, Advance, Claim, Commit, Complete, Copy, Enter, List, Open, Prepare, Rotate, Scan,
};
use idem_model::{CLAIMED_ONCE, Claims, KEPT, ONE_FIRST, Rule, SAME_FACTS, replay};

struct Counterexample {
    without: Rule,
    breaks: &'static str,
    /// The slice that has a filter, and into which rows are copied.
    filtered: usize,
    /// Actions, and how often each of them is repeated.
    steps: &'static [(Action, usize)],
}

/// Printed by `cargo run --release -p idem-model --example search`.
const COUNTEREXAMPLES: [Counterexample; Rule::ALL.len()] = [
    Counterexample {
        without: Rule::Opening,
        breaks: CLAIMED_ONCE,
        filtered: 0,
        steps: &[
            (Rotate, 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 5),
            (Rotate, 2),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 6),
            (Claim(1), 1),
            (Commit(1), 1),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::FirstFence,
        breaks: CLAIMED_ONCE,
        filtered: 3,
        steps: &[
            (Rotate, 5),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 5),
            (Rotate, 3),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 5),
            (Claim(1), 1),
            (Commit(1), 1),
            (Claim(0), 1),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::SecondFence,
        breaks: SAME_FACTS,
        filtered: 1,
        steps: &[
            (Rotate, 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 9),
            (Commit(1), 1),
            (Rotate, 6),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 1),
            (Rotate, 2),
        ],
    },
    Counterexample {
        without: Rule::FenceName,
        breaks: CLAIMED_ONCE,
        filtered: 2,
        steps: &[
            (Advance, 1),
            (Enter(1), 1),
            (Advance, 3),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 5),
            (Open(1), 1),
            (Claim(1), 3),
            (Claim(0), 1),
            (Commit(0), 1),
            (Claim(1), 5),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::Period,
        breaks: KEPT,
        filtered: 0,
        steps: &[
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 6),
            (Rotate, 1),
            (Commit(1), 1),
            (Rotate, 8),
        ],
    },
    Counterexample {
        without: Rule::WholeSlice,
        breaks: CLAIMED_ONCE,
        filtered: 3,
        steps: &[
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 6),
            (Commit(1), 1),
            (Advance, 2),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 6),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Conflict,
        breaks: SAME_FACTS,
        filtered: 0,
        steps: &[
            (Advance, 1),
            (Enter(0), 1),
            (Advance, 1),
            (Enter(1), 1),
            (Open(0), 1),
            (Claim(0), 4),
            (Open(1), 1),
            (Claim(1), 4),
            (Claim(0), 3),
            (Claim(1), 2),
            (Claim(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Invalidation,
        breaks: CLAIMED_ONCE,
        filtered: 2,
        steps: &[
            (Rotate, 7),
            (Prepare, 1),
            (List, 1),
            (Scan, 1),
            (Complete, 1),
            (Copy, 3),
            (Rotate, 1),
            (Enter(0), 1),
            (Copy, 1),
            (Open(0), 1),
            (Claim(0), 6),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Lockers,
        breaks: CLAIMED_ONCE,
        filtered: 1,
        steps: &[
            (Rotate, 2),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 5),
            (Rotate, 2),
            (Prepare, 1),
            (List, 1),
            (Scan, 1),
            (Claim(1), 1),
            (Commit(1), 1),
            (Rotate, 3),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 1),
            (Complete, 1),
            (Claim(0), 8),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Add,
        breaks: CLAIMED_ONCE,
        filtered: 1,
        steps: &[
            (Rotate, 2),
            (Enter(1), 1),
            (Rotate, 2),
            (Prepare, 1),
            (List, 1),
            (Open(1), 1),
            (Claim(1), 5),
            (Scan, 1),
            (Claim(1), 1),
            (Commit(1), 1),
            (Rotate, 3),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 1),
            (Complete, 1),
            (Claim(0), 8),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Completeness,
        breaks: CLAIMED_ONCE,
        filtered: 2,
        steps: &[
            (Rotate, 5),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 6),
            (Rotate, 2),
            (Prepare, 1),
            (Commit(1), 1),
            (Rotate, 1),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 6),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Tag,
        breaks: CLAIMED_ONCE,
        filtered: 2,
        steps: &[
            (Rotate, 1),
            (Prepare, 1),
            (Rotate, 3),
            (Enter(0), 1),
            (List, 1),
            (Open(0), 1),
            (Claim(0), 8),
            (Scan, 1),
            (Claim(0), 1),
            (Commit(0), 1),
            (Rotate, 9),
            (Enter(1), 1),
            (Open(1), 1),
            (Complete, 1),
            (Claim(1), 9),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::First,
        breaks: ONE_FIRST,
        filtered: 2,
        steps: &[
            (Rotate, 7),
            (Enter(0), 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 5),
            (Prepare, 1),
            (Claim(1), 1),
            (Copy, 2),
            (Prepare, 1),
            (Open(0), 1),
            (Claim(0), 6),
        ],
    },
];

fn model(without: Option<Rule>) -> Claims {
    Claims {
        claimers: 2,
        advances: 2,
        rotations: 5,
        copies: true,
        crashes: 0,
        without,
    }
}

#[test]
fn i1_each_rule_is_needed() {
    for (rule, example) in Rule::ALL.into_iter().zip(COUNTEREXAMPLES) {
        assert_eq!(rule, example.without, "each rule has its counterexample");
        let actions: Vec<Action> = example
            .steps
            .iter()
            .flat_map(|&(action, times)| std::iter::repeat_n(action, times))
            .collect();
        let broken = replay(&model(Some(rule)), example.filtered, &actions)
            .unwrap_or_else(|| panic!("{rule:?}: a step is not possible"));
        assert!(broken.contains(&example.breaks), "{rule:?}: {broken:?}");
        // With the rule, the same steps are not possible, or they break nothing.
        let kept = replay(&model(None), example.filtered, &actions);
        assert_eq!(kept.unwrap_or_default(), [""; 0], "{rule:?}");
    }
}
