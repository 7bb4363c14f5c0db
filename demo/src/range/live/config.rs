//! The settings of a run over a broker: its traffic, its size and the rate of kills.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::plan;
use crate::range::{Config, config::share, traffic::Traffic};

/// The settings of one run over a broker. The same seed gives the same traffic. The kills also
/// depend on the timing of the machine.
#[derive(Args, Clone, Debug)]
pub struct LiveConfig {
    /// The broker
    #[arg(long, value_enum)]
    pub broker: Kind,
    /// The traffic
    #[command(flatten)]
    pub field: Field,
    /// The number of messages that the producer sends per second. The producer should not finish
    /// before other processes have been killed
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub per_second: u32,
    /// Mean time between two kills, in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub kill_every_ms: u64,
    /// Handle the commands without idem. The verdict must report errors then
    #[arg(long)]
    pub unprotected: bool,
    /// The longest time, in seconds, that the run may take before it fails
    #[arg(long, default_value_t = 300)]
    pub deadline_s: u64,
}

/// The traffic of a run. The seed determines all of it, so that every process can compute it.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct Field {
    /// The number of different commands. Three of four are shots, the others move a target
    #[arg(
        long,
        default_value_t = 4_000,
        value_parser = clap::value_parser!(u32).range(1..=2_000_000)
    )]
    pub messages: u32,
    /// Share of commands that the producer sends twice
    #[arg(long, default_value_t = 0.30, value_parser = share)]
    pub duplicates: f64,
    /// The largest number of other sends between a command and its duplicate
    #[arg(
        long,
        default_value_t = plan::FAR,
        value_parser = clap::value_parser!(u32).range(600..=1_000_000)
    )]
    pub farthest: u32,
    /// The number of players
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub players: u32,
    /// The number of targets
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub targets: u32,
    /// The seed that determines the traffic
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The kinds of brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// RabbitMQ.
    #[value(name = "rabbitmq")]
    RabbitMq,
    /// NATS with JetStream.
    Nats,
}

impl LiveConfig {
    /// Returns the defaults of the command line for this broker.
    #[must_use]
    pub fn new(broker: Kind) -> Self {
        Self {
            broker,
            field: Field {
                messages: 4_000,
                duplicates: 0.30,
                farthest: plan::FAR,
                players: 100,
                targets: 64,
                seed: 1,
            },
            per_second: 400,
            kill_every_ms: 500,
            unprotected: false,
            deadline_s: 300,
        }
    }

    /// Returns the longest time that the run may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_s)
    }

    /// Returns the mean time between two kills.
    #[must_use]
    pub fn kill_every(&self) -> Duration {
        Duration::from_millis(self.kill_every_ms)
    }
}

impl Field {
    /// Returns the traffic. The generator of the range in memory makes it.
    pub fn traffic(&self) -> Result<Traffic> {
        let config = Config {
            players: self.players,
            targets: self.targets,
            // Not every command is a shot, so this gives at least the required number of commands.
            shots: self.messages,
            seed: self.seed,
            ..Config::new("")
        };
        Ok(Traffic::generate(&config)?.first(self.messages as usize))
    }

    /// Returns the commands in the order in which they are sent, duplicates included, as positions
    /// in the traffic.
    #[must_use]
    pub fn plan(&self) -> Vec<usize> {
        plan::sends(
            self.messages as usize,
            self.duplicates,
            self.farthest as usize,
            self.seed,
        )
    }

    /// Returns the arguments that pass this traffic to a process.
    #[must_use]
    pub fn arguments(&self) -> [String; 6] {
        let Self {
            messages,
            duplicates,
            farthest,
            players,
            targets,
            seed,
        } = self;
        [
            format!("--messages={messages}"),
            format!("--duplicates={duplicates}"),
            format!("--farthest={farthest}"),
            format!("--players={players}"),
            format!("--targets={targets}"),
            format!("--seed={seed}"),
        ]
    }
}

impl Kind {
    /// Returns the name on the command line.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Nats => "nats",
        }
    }

    /// Returns the name for tables and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "RabbitMQ",
            Self::Nats => "NATS JetStream",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::range::message::Kind as Command;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        config: LiveConfig,
    }

    /// `new` and the command line have the same defaults.
    #[test]
    fn new_has_the_defaults_of_the_command_line() {
        let typed = CommandLine::parse_from(["range", "--broker", "nats"]).config;
        assert_eq!(
            format!("{typed:?}"),
            format!("{:?}", LiveConfig::new(Kind::Nats))
        );
    }

    /// Every process gets the same traffic from its arguments.
    #[test]
    fn arguments_parse_to_the_same_field() {
        let field = Field {
            messages: 7,
            duplicates: 0.123,
            farthest: 700,
            players: 3,
            targets: 2,
            seed: 99,
        };
        let line = ["range", "--broker", "rabbitmq"]
            .map(str::to_owned)
            .into_iter()
            .chain(field.arguments());
        assert_eq!(CommandLine::parse_from(line).config.field, field);
    }

    /// The traffic has as many commands as the settings, and the attempts are the shots among them.
    #[test]
    fn traffic_has_requested_number_of_commands() {
        let traffic = LiveConfig::new(Kind::Nats).field.traffic().unwrap();
        assert_eq!(traffic.commands.len(), 4_000);
        let shots: Vec<_> = traffic
            .commands
            .iter()
            .filter(|c| c.kind == Command::FireAt)
            .map(|c| c.id)
            .collect();
        let attempts: Vec<_> = traffic.attempts.iter().map(|shot| shot.attempt).collect();
        assert_eq!(shots, attempts);
    }
}
