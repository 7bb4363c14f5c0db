//! The settings of a run over a broker.

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::plan;
use crate::range::{Config, config::share, traffic::Traffic};

/// The number of messages that the producer sends per second. The producer should not finish before
/// other processes have been killed.
pub const SENDS_PER_SECOND: u32 = 400;

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
    /// Handle the commands without idem. The verdict must report errors then
    #[arg(long)]
    pub unprotected: bool,
}

/// The traffic of a run. The seed determines all of it, so that every process can compute it.
#[derive(Args, Clone, Debug)]
pub struct Field {
    /// The number of different commands. Three of four are shots, the others move a target
    #[arg(
        long,
        default_value_t = Self::default().messages,
        value_parser = clap::value_parser!(u32).range(1..=2_000_000)
    )]
    pub messages: u32,
    /// Share of commands that the producer sends twice
    #[arg(long, default_value_t = Self::default().duplicates, value_parser = share)]
    pub duplicates: f64,
    /// The largest number of other sends between a command and its duplicate
    #[arg(
        long,
        default_value_t = Self::default().farthest,
        value_parser = clap::value_parser!(u32).range(600..=1_000_000)
    )]
    pub farthest: u32,
    /// The number of players.
    #[arg(long, hide = true, default_value_t = Self::default().players)]
    pub players: u32,
    /// The number of targets.
    #[arg(long, hide = true, default_value_t = Self::default().targets)]
    pub targets: u32,
    /// The seed that determines the traffic
    #[arg(long, default_value_t = Self::default().seed)]
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

impl Default for Field {
    fn default() -> Self {
        Self {
            messages: 4_000,
            duplicates: 0.30,
            farthest: plan::FAR,
            players: 100,
            targets: 64,
            seed: 1,
        }
    }
}

impl LiveConfig {
    /// Returns the defaults of the command line for this broker.
    #[must_use]
    pub fn new(broker: Kind) -> Self {
        Self {
            broker,
            field: Field::default(),
            unprotected: false,
        }
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
}

impl Kind {
    /// Returns the name for tables and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "RabbitMQ",
            Self::Nats => "NATS JetStream",
        }
    }
}

/// Returns the name of a value on the command line.
pub fn argument(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}
