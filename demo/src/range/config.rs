//! The settings of a run: the size of its traffic and the rates of its faults.

use std::time::Duration;

use clap::Args;

/// The settings of one run. The same seed gives the same traffic and the same faults.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// The connection string of a database that has the extension
    #[arg(long)]
    pub database_url: String,
    /// The number of players
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub players: u32,
    /// The number of targets
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub targets: u32,
    /// The number of shots of all players together
    #[arg(
        long,
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub shots: u32,
    /// The number of concurrent consumers, each with its own connection
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub consumers: u32,
    /// The seed that determines the traffic and the faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The rates of the faults
    #[command(flatten)]
    pub rates: Rates,
    /// The longest time, in seconds, that one system may take before the run fails
    #[arg(long, default_value_t = 120)]
    pub deadline_s: u64,
}

/// The rates of the faults, each a share from 0 to 1.
#[derive(Args, Clone, Debug)]
pub struct Rates {
    /// Share of messages that the transport delivers twice or three times
    #[arg(long, default_value_t = 0.20, value_parser = share)]
    pub duplicates: f64,
    /// Share of messages that are delivered after messages that were sent later
    #[arg(long, default_value_t = 0.30, value_parser = share)]
    pub reorder: f64,
    /// Share of messages that are delivered much later
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub delay: f64,
    /// Share of deliveries that are redelivered because their acknowledgement is lost
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub ack_loss: f64,
    /// Share of deliveries during which the consumer is killed
    #[arg(long, default_value_t = 0.03, value_parser = share)]
    pub kill: f64,
}

impl Config {
    /// Returns the defaults of the command line for this connection string.
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

    /// Returns the longest time that one system may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_s)
    }
}

/// Parses a number from 0 to 1.
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

    /// `new` and the command line have the same defaults.
    #[test]
    fn new_has_the_defaults_of_the_command_line() {
        let typed = CommandLine::parse_from(["range", "--database-url", "x"]).config;
        assert_eq!(format!("{typed:?}"), format!("{:?}", Config::new("x")));
    }

    /// A share is accepted from 0 to 1 and rejected otherwise.
    #[test]
    fn share_outside_0_to_1_is_rejected() {
        assert!(share("0").is_ok() && share("1").is_ok());
        assert!(share("1.1").is_err() && share("-0.1").is_err() && share("NaN").is_err());
    }
}
