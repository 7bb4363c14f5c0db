//! The commands of one run, in the order in which they are sent: all from the seed.

use anyhow::Result;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;

use super::{
    Config,
    message::{FireAt, Kind, Message, MoveTarget},
};

/// Few, so that a player who aims at an old position still hits now and then.
const POSITIONS: i32 = 3;

/// One in so many commands is a move. With eight targets a shot's duplicate finds its target moved
/// about as often as not.
const COMMANDS_PER_MOVE: u32 = 4;

/// What is sent, and where the targets stand at the start.
pub struct Traffic {
    /// The commands, in order.
    pub commands: Vec<Message>,
    /// The attempts among them.
    pub attempts: Vec<FireAt>,
    /// The first position of each target.
    pub positions: Vec<i32>,
}

impl Traffic {
    /// The traffic of this seed.
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
                // Always away from where it was.
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

    /// The first commands of it, and the attempts among them.
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

    #[test]
    fn the_same_seed_gives_the_same_traffic_and_another_seed_another() {
        assert_eq!(bodies(7), bodies(7));
        assert_ne!(bodies(7), bodies(8));
    }

    #[test]
    fn every_shot_is_fired_and_targets_move_meanwhile() {
        let config = Config {
            shots: 100,
            ..Config::new("")
        };
        let traffic = Traffic::generate(&config).unwrap();
        let of = |kind| traffic.commands.iter().filter(|m| m.kind == kind).count();
        assert_eq!(of(Kind::FireAt), 100);
        assert_eq!(traffic.attempts.len(), 100);
        assert!(of(Kind::MoveTarget) > 10);
    }
}
