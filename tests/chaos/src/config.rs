//! The settings of a campaign.

use std::time::Duration;

use clap::Args;

use idem_demo::range::live::{Field, Flaw, Kind, place::nats::OLDEST_MESSAGE};

/// The number of messages that the producer sends per second.
pub const SENDS_PER_SECOND: u32 = 60;

/// The retention of the claims of the range. Every duplicate should be delivered within this time.
/// The checker reports a duplicate that was delivered later as late, and not as a message that was
/// handled twice.
pub const RETENTION: Duration = Duration::from_secs(300);
const _: () = assert!(OLDEST_MESSAGE.as_secs() < RETENTION.as_secs());

/// The share of commands that are sent twice.
const DUPLICATES: f64 = 0.30;

/// The largest number of other sends between a command and its duplicate. The producer needs 10
/// seconds for this number of sends, plus the outages in this time.
const FARTHEST_SENDS: u32 = 600;

/// Mean time between two kills of a process.
pub const KILL_EVERY: Duration = Duration::from_millis(2_500);

/// The longest campaign, in minutes. There is a limit because every process has all commands in
/// memory.
const MOST_MINUTES: i64 = 240;

/// The longest time of a fault, including the recovery and the kills after it.
const LONGEST_FAULT: Duration = Duration::from_secs(300);

/// The length of a cycle in minutes. Each fault happens at least once per cycle, and at least once
/// in a campaign that is shorter than a cycle.
const MINUTES_PER_CYCLE: u32 = 6;

/// The settings of a campaign.
#[derive(Args, Clone, Debug)]
pub struct CampaignConfig {
    /// The minimum time, in minutes, for which faults are injected; at most 240. The campaign
    /// continues until each fault has met its minimum
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_MINUTES))]
    pub minutes: u32,
    /// The broker
    #[arg(long, value_enum, default_value = "rabbitmq")]
    pub broker: Kind,
    /// The seed that determines the traffic and the order of the faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Plants a known bug, which the ledger must report
    #[arg(long = "break", value_enum)]
    pub flaw: Option<Flaw>,
}

impl CampaignConfig {
    /// Returns the number of cycles.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        u64::from((self.minutes / MINUTES_PER_CYCLE).max(1))
    }

    /// Returns the minimum number of faults of each kind. A campaign with a planted bug has none.
    #[must_use]
    pub fn minimum(&self) -> u64 {
        if self.flaw.is_some() {
            0
        } else {
            self.cycles()
        }
    }

    /// Returns the minimum time for which faults are injected.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_secs(60) * self.minutes
    }

    /// Returns the maximum time for which faults are injected. If a fault has not met its minimum
    /// by then, the campaign ends and its ledger does not pass.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.duration().mul_f64(1.5) + Duration::from_secs(600)
    }

    /// Returns the time after which the campaign fails.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.duration() * 2 + Duration::from_secs(900)
    }

    /// Returns the traffic. It has more messages than the producer can send before the end of the
    /// last fault, which may begin as late as [`longest`](Self::longest).
    #[must_use]
    pub fn field(&self) -> Field {
        let seconds = self.longest() + LONGEST_FAULT;
        let commands = seconds.as_secs_f64() * f64::from(SENDS_PER_SECOND) / (1.0 + DUPLICATES);
        Field {
            messages: commands as u32,
            duplicates: DUPLICATES,
            farthest: FARTHEST_SENDS,
            seed: self.seed,
            ..Field::default()
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

    /// The longest permitted campaign has enough messages, and a worker accepts their number.
    #[test]
    fn longest_campaign_has_messages_for_all_faults() {
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
            "{} minutes: the messages end after {seconds} s, the faults after {faults} s",
            longest.minutes
        );
        let messages = longest.field().messages;
        let line = ["worker", &format!("--messages={messages}")];
        assert_eq!(Worker::parse_from(line).field.messages, messages);
    }
}
