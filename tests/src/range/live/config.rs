//! What is played over a broker, how large, and how often somebody dies.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::plan;
use crate::range::{Config, config::share, traffic::Traffic};

/// One run over a broker. The same seed gives the same traffic; who dies when is up to the machine
/// as well.
#[derive(Args, Clone, Debug)]
pub struct LiveConfig {
    /// What the messages travel over
    #[arg(long, value_enum)]
    pub broker: Kind,
    /// What travels
    #[command(flatten)]
    pub field: Field,
    /// How many messages the producer sends in a second; it is not meant to be done before others
    /// have been killed
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub per_second: u32,
    /// Mean time between two kills, in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub kill_every_ms: u64,
    /// Handle the commands without idem: the verdict must see it
    #[arg(long)]
    pub unprotected: bool,
    /// How many seconds the run may take before it counts as failed
    #[arg(long, default_value_t = 300)]
    pub deadline_s: u64,
}

/// What travels: all from the seed, so that every process knows it.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct Field {
    /// How many different commands are sent: three of four fire, one moves a target
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub messages: u32,
    /// Share of commands that the producer sends twice
    #[arg(long, default_value_t = 0.30, value_parser = share)]
    pub duplicates: f64,
    /// How many sends later a duplicate comes at most
    #[arg(long, default_value_t = plan::FAR, value_parser = clap::value_parser!(u32).range(600..=1_000_000))]
    pub farthest: u32,
    /// How many players fire
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub players: u32,
    /// How many targets there are to fire at
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub targets: u32,
    /// Chooses the traffic
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The brokers that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// RabbitMQ.
    #[value(name = "rabbitmq")]
    RabbitMq,
    /// NATS with JetStream.
    Nats,
}

impl LiveConfig {
    /// The defaults of the command line.
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

    /// How long the run may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_s)
    }

    /// Mean time between two kills.
    #[must_use]
    pub fn kill_every(&self) -> Duration {
        Duration::from_millis(self.kill_every_ms)
    }
}

impl Field {
    /// The commands, as the range in memory has them.
    pub fn traffic(&self) -> Result<Traffic> {
        let config = Config {
            players: self.players,
            targets: self.targets,
            // At least enough: not every command is a shot.
            shots: self.messages,
            seed: self.seed,
            ..Config::new("")
        };
        Ok(Traffic::generate(&config)?.first(self.messages as usize))
    }

    /// Which command is sent when, duplicates included.
    #[must_use]
    pub fn plan(&self) -> Vec<usize> {
        plan::sends(
            self.messages as usize,
            self.duplicates,
            self.farthest as usize,
            self.seed,
        )
    }

    /// The same on a command line.
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
    /// The name on a command line.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Nats => "nats",
        }
    }

    /// The name for people.
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

    #[test]
    fn a_test_and_a_person_start_from_the_same_defaults() {
        let typed = CommandLine::parse_from(["range", "--broker", "nats"]).config;
        assert_eq!(
            format!("{typed:?}"),
            format!("{:?}", LiveConfig::new(Kind::Nats))
        );
    }

    #[test]
    fn every_process_is_told_the_same_field() {
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

    #[test]
    fn the_traffic_has_as_many_commands_as_asked_for_and_its_shots_are_the_attempts() {
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
