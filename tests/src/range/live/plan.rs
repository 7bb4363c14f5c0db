//! The order in which a producer sends its commands, and which of them twice.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::index};

/// A duplicate comes at least so many sends after the first: a broker that drops what it has just
/// seen lets it pass.
const NEAR: usize = 100;

/// Some come much later, after most targets have moved.
pub const FAR: u32 = 4_000;

/// Positions of commands: each once in order, and a share of them once more, later.
#[must_use]
pub fn sends(commands: usize, duplicates: f64, far: usize, seed: u64) -> Vec<usize> {
    let mut dice = StdRng::seed_from_u64(seed ^ 0x0D0B_1E5E);
    // Twice the place, so that a duplicate goes between two commands and never beside its equal.
    let mut timed: Vec<(usize, usize)> = (0..commands)
        .map(|command| (2 * command, command))
        .collect();
    let again = (commands as f64 * duplicates).round() as usize;
    for command in index::sample(&mut dice, commands, again.min(commands)) {
        let farthest = if dice.random_bool(0.3) { far } else { 5 * NEAR };
        timed.push((
            2 * (command + dice.random_range(NEAR..=farthest)) + 1,
            command,
        ));
    }
    timed.sort_unstable();
    timed.into_iter().map(|(_, command)| command).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn each_command_is_sent_in_order_and_three_of_ten_again_and_later() {
        let plan = sends(1_000, 0.3, 4_000, 1);
        assert_eq!(plan.len(), 1_300);
        let mut at: HashMap<usize, Vec<usize>> = HashMap::new();
        for (place, command) in plan.iter().enumerate() {
            at.entry(*command).or_default().push(place);
        }
        let firsts: Vec<usize> = (0..1_000).map(|command| at[&command][0]).collect();
        assert!(firsts.is_sorted());
        assert_eq!(at.values().filter(|places| places.len() == 2).count(), 300);
        assert_eq!(plan, sends(1_000, 0.3, 4_000, 1));
        assert_ne!(plan, sends(1_000, 0.3, 4_000, 2));
    }
}
