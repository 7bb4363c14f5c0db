//! The commands of one run, in the order in which they are sent. The seed determines all of them.

use anyhow::Result;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;

use super::{
    Config,
    message::{FireAt, Kind, Message, MoveTarget},
};

/// The number of positions of a target. It is small, so that a shot at an old position still hits
/// sometimes.
const POSITIONS: i32 = 3;

/// The mean number of commands for each move. With eight targets, a target has moved between a shot
/// and its duplicate in about half of the cases.
const COMMANDS_PER_MOVE: u32 = 4;

/// The commands, and the positions of the targets at the start.
pub struct Traffic {
    /// The commands, in order.
    pub commands: Vec<Message>,
    /// The shots among the commands, in order.
    pub attempts: Vec<FireAt>,
    /// The position of each target at the start.
    pub positions: Vec<i32>,
}

impl Traffic {
    /// Generates the traffic of the seed in `config`.
    pub fn generate(config: &Config) -> Result<Self> {
        let mut dice = StdRng::seed_from_u64(config.seed);
        let positions: Vec<i32> = (0..config.targets)
            .map(|_| dice.random_range(0..POSITIONS))
            .collect();
        let mut seen = positions.clone();
        let mut commands = Vec::new();
        let mut attempts = Vec::new();
        while attempts.len() < config.shots as usize {
            let target = dice.random_range(0..seen.len());
            let id = Uuid::from_u128(dice.random());
            if dice.random_ratio(1, COMMANDS_PER_MOVE) {
                // The new position always differs from the old one.
                seen[target] = (seen[target] + dice.random_range(1..POSITIONS)) % POSITIONS;
                commands.push(command(
                    id,
                    Kind::MoveTarget,
                    &MoveTarget {
                        order: id,
                        target: i32::try_from(target)?,
                        position: seen[target],
                    },
                )?);
            } else {
                let shot = FireAt {
                    attempt: id,
                    player: i32::try_from(dice.random_range(0..config.players))?,
                    target: i32::try_from(target)?,
                    aim: seen[target],
                };
                commands.push(command(id, Kind::FireAt, &shot)?);
                attempts.push(shot);
            }
        }
        Ok(Self {
            commands,
            attempts,
            positions,
        })
    }

    /// Keeps only the first `commands` commands, and the attempts among them.
    #[must_use]
    pub fn first(mut self, commands: usize) -> Self {
        self.commands.truncate(commands);
        let shots = self
            .commands
            .iter()
            .filter(|command| command.kind == Kind::FireAt);
        self.attempts.truncate(shots.count());
        self
    }
}

fn command(id: Uuid, kind: Kind, body: &impl serde::Serialize) -> Result<Message> {
    Ok(Message {
        id,
        kind,
        subject: id,
        body: serde_json::to_vec(body)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(seed: u64) -> Vec<Vec<u8>> {
        let config = Config {
            seed,
            shots: 50,
            ..Config::new("")
        };
        let traffic = Traffic::generate(&config).unwrap();
        traffic.commands.into_iter().map(|m| m.body).collect()
    }

    /// The same seed gives the same commands, and another seed gives other commands.
    #[test]
    fn seed_determines_the_traffic() {
        assert_eq!(bodies(7), bodies(7));
        assert_ne!(bodies(7), bodies(8));
    }

    /// The traffic has the requested number of shots or commands, and targets move.
    #[test]
    fn traffic_has_all_shots_and_moves_between_them() {
        let config = Config {
            shots: 100,
            ..Config::new("")
        };
        let traffic = Traffic::generate(&config).unwrap();
        let shots = |traffic: &Traffic| -> Vec<Uuid> {
            let shots = traffic.commands.iter().filter(|m| m.kind == Kind::FireAt);
            shots.map(|shot| shot.id).collect()
        };
        assert_eq!(shots(&traffic).len(), 100);
        assert!(traffic.commands.len() > 110);
        let traffic = traffic.first(50);
        assert_eq!(traffic.commands.len(), 50);
        let attempts: Vec<_> = traffic.attempts.iter().map(|shot| shot.attempt).collect();
        assert_eq!(shots(&traffic), attempts);
    }
}
