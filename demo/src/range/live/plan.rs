//! The order in which the producer sends its commands and their duplicates.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::index};

/// The smallest number of sends between a command and its duplicate. A broker that drops recent
/// duplicates does not drop such a duplicate.
const NEAR: usize = 100;

/// The largest number of sends between a command and its duplicate, by default. Most targets have
/// moved by then.
pub const FAR: u32 = 4_000;

/// Returns the positions of the commands in the order in which they are sent. Each command is sent
/// once, in order. The share `duplicates` of the commands is sent a second time, at most `far`
/// sends later.
#[must_use]
pub fn sends(commands: usize, duplicates: f64, far: usize, seed: u64) -> Vec<usize> {
    let mut dice = StdRng::seed_from_u64(seed ^ 0x0D0B_1E5E);
    // Commands have even times and duplicates have odd times, so a command and a duplicate never
    // have the same time.
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

    /// Each command is sent once, in order. A share of the commands is sent again later, and the
    /// seed determines these commands.
    #[test]
    fn sends_are_in_order_with_later_duplicates() {
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
