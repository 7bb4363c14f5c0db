//! What a campaign is started with.

use std::time::Duration;

use clap::Args;

use crate::range::live::{Field, Flaw, Kind, place::nats::OLDEST_MESSAGE};

/// Sends of the producer in a second.
pub const SENDS_PER_SECOND: u32 = 60;

/// Claims of the range are kept for so long. Every duplicate has to come within it; the checker
/// tells one that came later from one that was handled twice.
pub const RETENTION: Duration = Duration::from_secs(300);
const _: () = assert!(OLDEST_MESSAGE.as_secs() < RETENTION.as_secs());

/// The share of commands that are sent twice.
const DUPLICATES: f64 = 0.30;

/// A duplicate comes at most so many sends later: 10 seconds, and the outages of that time.
const FARTHEST_SENDS: u32 = 600;

/// Mean time between two kills of a process.
pub const KILL_EVERY: Duration = Duration::from_millis(2_500);

/// The longest campaign whose load every process can hold: each knows all commands.
const MOST_MINUTES: i64 = 240;

/// The longest fault, with the recovery from it and the kills after it.
const LONGEST_FAULT: Duration = Duration::from_secs(300);

/// Each fault happens at least once in so many minutes, and once in a shorter campaign.
const MINUTES_PER_CYCLE: u32 = 6;

/// A campaign.
#[derive(Args, Clone, Debug)]
pub struct CampaignConfig {
    /// How long faults are injected, at least: the campaign goes on until each has met its minimum.
    /// At most 240
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_MINUTES))]
    pub minutes: u32,
    /// What the messages travel over
    #[arg(long, value_enum, default_value = "rabbitmq")]
    pub broker: Kind,
    /// Chooses the traffic and the order of the faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Plants a known bug, which the ledger must report
    #[arg(long = "break", value_enum)]
    pub flaw: Option<Flaw>,
}

impl CampaignConfig {
    /// How often each kind of fault has to happen.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        u64::from((self.minutes / MINUTES_PER_CYCLE).max(1))
    }

    /// How long faults are injected, at least.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_secs(60) * self.minutes
    }

    /// How long faults are injected, at most. A minimum that is not met by then is red.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.duration().mul_f64(1.5) + Duration::from_secs(600)
    }

    /// After this time the campaign has failed.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.duration() * 2 + Duration::from_secs(900)
    }

    /// What the producer sends: more than it can until the last fault, which may begin as late as
    /// [`longest`](Self::longest).
    #[must_use]
    pub fn field(&self) -> Field {
        let seconds = self.longest() + LONGEST_FAULT;
        let commands = seconds.as_secs_f64() * f64::from(SENDS_PER_SECOND) / (1.0 + DUPLICATES);
        Field {
            messages: commands as u32,
            duplicates: DUPLICATES,
            farthest: FARTHEST_SENDS,
            players: 100,
            targets: 64,
            seed: self.seed,
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
        config: CampaignConfig,
    }

    #[derive(Parser)]
    struct Worker {
        #[command(flatten)]
        field: Field,
    }

    #[test]
    fn load_of_the_longest_campaign_outlasts_its_faults() {
        let longest = (1..=1_440)
            .rev()
            .find_map(|minutes| {
                CommandLine::try_parse_from(["chaos", &format!("--minutes={minutes}")]).ok()
            })
            .unwrap()
            .config;
        let seconds =
            f64::from(longest.field().messages) * (1.0 + DUPLICATES) / f64::from(SENDS_PER_SECOND);
        let faults = (longest.longest() + LONGEST_FAULT).as_secs_f64() - 1.0;
        assert!(
            seconds >= faults,
            "{} minutes: the load ends after {seconds} s, the faults after {faults} s",
            longest.minutes
        );
        let line = ["worker".to_owned()]
            .into_iter()
            .chain(longest.field().arguments());
        assert_eq!(Worker::try_parse_from(line).unwrap().field, longest.field());
    }
}
