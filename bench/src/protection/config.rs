//! The settings of the measurement.

use std::time::Duration;

use clap::Args;

use super::Contestant;

/// The settings of the measurement of what protection costs.
#[derive(Args, Clone, Debug)]
#[group(id = "cost")]
pub struct Config {
    /// The number of rounds in which the cost of protection is measured
    #[arg(
        long = "cost-rounds",
        default_value_t = 7,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000)
    )]
    pub rounds: usize,
    /// The time, in milliseconds, for which each contestant runs in each round
    #[arg(
        long = "cost-round-ms",
        default_value_t = 700,
        value_parser = clap::value_parser!(u64).range(50..=60_000)
    )]
    pub round_ms: u64,
    /// The number of clients of each contestant
    #[arg(
        long = "cost-clients",
        default_value_t = 8,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100)
    )]
    pub clients: usize,
    /// The number of claims that both inboxes retain before the rounds
    #[arg(
        long = "cost-retained",
        default_value_t = 2_000_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000_000)
    )]
    pub retained: u32,
    /// Whether each message has an outgoing message.
    #[arg(skip = true)]
    pub outgoing: bool,
    /// A known bug, which the check of the rows must report. For tests only.
    #[arg(skip)]
    pub flaw: Option<Flaw>,
}

/// A known bug of a contestant that has protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// This contestant writes no outgoing message.
    SkippedOutbox(Contestant),
    /// This contestant does not do the business update.
    SkippedUpdate(Contestant),
}

impl Config {
    /// Returns the time for which each contestant runs in each round.
    #[must_use]
    pub fn round(&self) -> Duration {
        Duration::from_millis(self.round_ms)
    }
}

/// Returns the number of connections of each pool: one for each client, and the one that idem keeps
/// for short statements.
#[must_use]
pub const fn connections(clients: usize) -> usize {
    clients + 1
}

impl Default for Config {
    /// Returns the defaults of the command line.
    fn default() -> Self {
        Self {
            rounds: 7,
            round_ms: 700,
            clients: 8,
            retained: 2_000_000,
            outgoing: true,
            flaw: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        config: Config,
    }

    /// `default` and the command line have the same defaults.
    #[test]
    fn default_has_the_defaults_of_the_command_line() {
        let typed = CommandLine::parse_from(["demo"]).config;
        assert_eq!(format!("{typed:?}"), format!("{:?}", Config::default()));
    }

    /// Every setting can be set on the command line.
    #[test]
    fn command_line_sets_every_setting() {
        let line = "demo --cost-rounds 3 --cost-round-ms 50 --cost-clients 2 --cost-retained 9";
        let typed = CommandLine::parse_from(line.split(' ')).config;
        assert_eq!((typed.rounds, typed.clients, typed.retained), (3, 2, 9));
        assert_eq!(typed.round(), Duration::from_millis(50));
    }
}
