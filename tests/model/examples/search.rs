//! Searches a counterexample for each rule that is left out, and prints a short form of it for
//! `tests/counterexamples.rs`.

use idem_model::{Action, Claims, Rule, replay};
use stateright::{Checker, Model};

fn main() {
    for rule in Rule::ALL {
        let model = Claims::without(rule);
        let checker = model.clone().checker().threads(2).spawn_bfs().join();
        for (name, path) in checker.discoveries() {
            let filtered = path.last_state().filtered;
            let actions = path.into_actions();
            if replay(&model, filtered, &actions).is_some_and(|broken| broken.contains(&name)) {
                let short = shortest(&model, name, filtered, actions);
                let runs = short.chunk_by(|one, other| one == other);
                let steps: Vec<_> = runs.map(|run| (run[0], run.len())).collect();
                println!("{rule:?}, {name}, {filtered}: {steps:?}");
            }
        }
    }
}

/// Removes every step without which the rest still breaks the invariant.
fn shortest(model: &Claims, name: &str, filtered: u8, mut actions: Vec<Action>) -> Vec<Action> {
    let breaks = |actions: &[Action]| {
        replay(model, filtered, actions).is_some_and(|broken| broken.contains(&name))
    };
    loop {
        let without = |n: usize| {
            let mut fewer = actions.clone();
            fewer.remove(n);
            fewer
        };
        match (0..actions.len()).map(without).find(|fewer| breaks(fewer)) {
            Some(fewer) => actions = fewer,
            None => return actions,
        }
    }
}
