//! The settings of a run: the size of its traffic and the rates of its faults.

use std::time::Duration;

use clap::{Args, Parser};

/// The settings of one run. The same seed gives the same traffic and the same faults.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// The connection string of a database that has the extension
    #[arg(long)]
    pub database_url: String,
    /// The number of players.
    #[arg(skip = 20_u32)]
    pub players: u32,
    /// The number of targets.
    #[arg(skip = 8_u32)]
    pub targets: u32,
    /// The number of shots of all players together
    #[arg(
        long,
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub shots: u32,
    /// The number of concurrent consumers, each with its own connection.
    #[arg(skip = 8_u32)]
    pub consumers: u32,
    /// The seed that determines the traffic and the faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The rates of the faults
    #[command(flatten)]
    pub rates: Rates,
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

/// The longest time that one system may take before the run fails.
pub const DEADLINE: Duration = Duration::from_secs(120);

impl Config {
    /// Returns the defaults of the command line for this connection string.
    #[must_use]
    pub fn new(database_url: &str) -> Self {
        #[derive(Parser)]
        struct CommandLine {
            #[command(flatten)]
            config: Config,
        }
        let database_url = format!("--database-url={database_url}");
        CommandLine::parse_from(["range", &database_url]).config
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
    use super::*;

    /// A share is accepted from 0 to 1 and rejected otherwise.
    #[test]
    fn share_outside_0_to_1_is_rejected() {
        assert!(share("0").is_ok() && share("1").is_ok());
        assert!(share("1.1").is_err() && share("-0.1").is_err() && share("NaN").is_err());
    }
}
