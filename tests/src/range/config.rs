//! What is played, how large and how faulty.

use std::time::Duration;

use clap::Args;

/// One run of the range. The same seed gives the same traffic and the same faults.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Where to play: a connection string of a database that has the extension
    #[arg(long)]
    pub database_url: String,
    /// How many players fire
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub players: u32,
    /// How many targets there are to fire at
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub targets: u32,
    /// How many shots are fired, all players together
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub shots: u32,
    /// How many consumers work at the same time, each on a connection of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub consumers: u32,
    /// Chooses traffic and faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How often things go wrong
    #[command(flatten)]
    pub rates: Rates,
    /// How many seconds one system may take before the run counts as failed
    #[arg(long, default_value_t = 120)]
    pub deadline_s: u64,
}

/// How often things go wrong, each a share from 0 to 1.
#[derive(Args, Clone, Debug)]
pub struct Rates {
    /// Share of messages that the transport delivers twice or three times
    #[arg(long, default_value_t = 0.20, value_parser = share)]
    pub duplicates: f64,
    /// Share of messages that their neighbours overtake
    #[arg(long, default_value_t = 0.30, value_parser = share)]
    pub reorder: f64,
    /// Share of messages that come much later
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub delay: f64,
    /// Share of deliveries whose acknowledgement is lost, so that they come again
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub ack_loss: f64,
    /// Share of deliveries during which the consumer is killed
    #[arg(long, default_value_t = 0.03, value_parser = share)]
    pub kill: f64,
}

impl Config {
    /// The defaults of the command line.
    #[must_use]
    pub fn new(database_url: impl Into<String>) -> Self {
        Self {
            database_url: database_url.into(),
            players: 20,
            targets: 8,
            shots: 2_000,
            consumers: 8,
            seed: 1,
            rates: Rates {
                duplicates: 0.20,
                reorder: 0.30,
                delay: 0.05,
                ack_loss: 0.05,
                kill: 0.03,
            },
            deadline_s: 120,
        }
    }

    /// How long one system may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_s)
    }
}

/// Parses a share.
pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".into()),
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

    #[test]
    fn a_test_and_a_person_start_from_the_same_defaults() {
        let typed = CommandLine::parse_from(["range", "--database-url", "x"]).config;
        assert_eq!(format!("{typed:?}"), format!("{:?}", Config::new("x")));
    }

    #[test]
    fn a_share_lies_between_0_and_1() {
        assert!(share("0").is_ok() && share("1").is_ok());
        assert!(share("1.1").is_err() && share("-0.1").is_err() && share("NaN").is_err());
    }
}
