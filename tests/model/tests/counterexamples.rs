//! Each rule of the protocol is needed: without it, these steps break an invariant.

use idem_model::Action::{
    self, Advance, Claim, Commit, Complete, Copy, Enter, List, Open, Prepare, RollBack, Rotate,
    Scan,
};
use idem_model::properties::{CLAIMED_ONCE, KEPT, ONE_FIRST, SAME_FACTS};
use idem_model::{Claims, Rule, replay};

struct Counterexample {
    without: Rule,
    breaks: &'static str,
    /// The slice that has a filter, and into which rows are copied.
    filtered: u8,
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
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 5),
            (Rotate, 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 2),
            (Claim(0), 1),
            (Commit(0), 1),
            (Claim(1), 3),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::Advancing,
        breaks: CLAIMED_ONCE,
        filtered: 0,
        steps: &[
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 4),
            (Advance, 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 1),
            (Claim(0), 1),
            (Claim(1), 2),
            (Claim(0), 1),
            (Commit(0), 1),
            (Claim(1), 3),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::FirstFence,
        breaks: CLAIMED_ONCE,
        filtered: 2,
        steps: &[
            (Rotate, 3),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 4),
            (Rotate, 3),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 2),
            (Claim(0), 1),
            (Commit(0), 1),
            (Claim(1), 4),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::SecondFence,
        breaks: SAME_FACTS,
        filtered: 1,
        steps: &[
            (Rotate, 2),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 8),
            (Rotate, 1),
            (Commit(0), 1),
            (Rotate, 7),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 2),
            (Rotate, 2),
        ],
    },
    Counterexample {
        without: Rule::FenceName,
        breaks: CLAIMED_ONCE,
        filtered: 0,
        steps: &[
            (Advance, 1),
            (Rotate, 2),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 5),
            (Advance, 1),
            (Rotate, 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 3),
            (Claim(0), 1),
            (Commit(0), 1),
            (Claim(1), 3),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::Period,
        breaks: KEPT,
        filtered: 1,
        steps: &[
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 4),
            (Rotate, 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 6),
            (Rotate, 1),
            (Claim(1), 2),
            (RollBack(1), 1),
            (Claim(0), 1),
            (Commit(0), 1),
            (Rotate, 8),
            (Advance, 1),
            (Rotate, 7),
        ],
    },
    Counterexample {
        without: Rule::WholeSlice,
        breaks: CLAIMED_ONCE,
        filtered: 0,
        steps: &[
            (Enter(0), 1),
            (Copy, 4),
            (Open(0), 1),
            (Claim(0), 7),
            (Commit(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Conflict,
        breaks: SAME_FACTS,
        filtered: 0,
        steps: &[
            (Advance, 1),
            (Rotate, 1),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 5),
            (Rotate, 1),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 3),
            (Claim(0), 2),
            (Claim(1), 3),
            (Claim(0), 1),
        ],
    },
    Counterexample {
        without: Rule::Invalidation,
        breaks: CLAIMED_ONCE,
        filtered: 1,
        steps: &[
            (Rotate, 1),
            (Enter(0), 1),
            (Enter(1), 1),
            (Prepare, 1),
            (List, 1),
            (Scan, 1),
            (Complete, 1),
            (Copy, 4),
            (Open(1), 1),
            (Claim(1), 8),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::Lockers,
        breaks: CLAIMED_ONCE,
        filtered: 2,
        steps: &[
            (Rotate, 11),
            (Enter(0), 1),
            (Enter(1), 1),
            (Copy, 2),
            (Prepare, 1),
            (List, 1),
            (Scan, 1),
            (Complete, 1),
            (Copy, 2),
            (Open(1), 1),
            (Claim(1), 8),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::Add,
        breaks: CLAIMED_ONCE,
        filtered: 2,
        steps: &[
            (Rotate, 8),
            (Enter(0), 1),
            (Rotate, 1),
            (Prepare, 1),
            (List, 1),
            (Open(0), 1),
            (Claim(0), 5),
            (Scan, 1),
            (Claim(0), 1),
            (Commit(0), 1),
            (Rotate, 4),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 1),
            (Complete, 1),
            (Claim(1), 4),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::Completeness,
        breaks: CLAIMED_ONCE,
        filtered: 1,
        steps: &[
            (Rotate, 3),
            (Enter(0), 1),
            (Open(0), 1),
            (Claim(0), 6),
            (Commit(0), 1),
            (Rotate, 8),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 1),
            (Prepare, 1),
            (Claim(1), 6),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::Tag,
        breaks: CLAIMED_ONCE,
        filtered: 3,
        steps: &[
            (Rotate, 7),
            (Prepare, 1),
            (Rotate, 6),
            (Enter(0), 1),
            (List, 1),
            (Open(0), 1),
            (Claim(0), 5),
            (Scan, 1),
            (Claim(0), 1),
            (Commit(0), 1),
            (Rotate, 8),
            (Enter(1), 1),
            (Open(1), 1),
            (Claim(1), 1),
            (Complete, 1),
            (Claim(1), 6),
            (Commit(1), 1),
        ],
    },
    Counterexample {
        without: Rule::First,
        breaks: ONE_FIRST,
        filtered: 2,
        steps: &[
            (Rotate, 11),
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

#[test]
fn i1_each_rule_is_needed() {
    for (rule, example) in Rule::ALL.into_iter().zip(COUNTEREXAMPLES) {
        assert_eq!(rule, example.without, "each rule has its counterexample");
        let actions: Vec<Action> = example
            .steps
            .iter()
            .flat_map(|&(action, times)| std::iter::repeat_n(action, times))
            .collect();
        let model = |without| Claims {
            rotations: 5,
            advances: 2,
            without,
            ..Claims::WHOLE
        };
        let broken = replay(&model(Some(rule)), example.filtered, &actions)
            .unwrap_or_else(|| panic!("{rule:?}: a step is not possible"));
        assert!(broken.contains(&example.breaks), "{rule:?}: {broken:?}");
        // With the rule, the same steps are not possible, or they break nothing.
        let kept = replay(&model(None), example.filtered, &actions);
        assert_eq!(kept.unwrap_or_default(), [""; 0], "{rule:?}");
    }
}
