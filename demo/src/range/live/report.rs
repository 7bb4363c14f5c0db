//! The report of a run over a broker, printed as a table.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{LiveConfig, LiveVerdict, Role, processes::Tally, servers::Server};
use crate::range::verdict::Facts;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct LiveReport {
    /// The settings of the run.
    pub config: LiveConfig,
    /// The number of shots among the commands.
    pub attempts: usize,
    /// The number of messages that the producers have sent, duplicates included.
    pub sent: u64,
    /// The number of deliveries to the targets, the board and the observer.
    pub given: [u64; 3],
    /// The number of messages that each destination has claimed.
    pub claimed: BTreeMap<String, u64>,
    /// The kills and unexpected ends of processes.
    pub tally: Tally,
    /// The servers that were killed and restarted.
    pub crashed: Vec<Server>,
    /// All facts that the observer received.
    pub facts: Facts,
    /// The duration of the run.
    pub played: Duration,
    /// The errors.
    pub verdict: LiveVerdict,
}

impl LiveReport {
    /// Returns the number of commands that were sent again.
    #[must_use]
    pub fn sent_again(&self) -> u64 {
        self.sent
            .saturating_sub(u64::from(self.config.field.messages))
    }

    /// Returns the number of deliveries to the targets beyond one for each command.
    #[must_use]
    pub fn given_again(&self) -> u64 {
        self.given[0].saturating_sub(u64::from(self.config.field.messages))
    }

    /// Returns the number of facts that the observer received again.
    #[must_use]
    pub fn told_again(&self) -> usize {
        self.facts.values().map(|told| told.len() - 1).sum()
    }
}

const LABEL: usize = 40;
const COLUMN: usize = 10;

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LiveConfig { broker, field, .. } = &self.config;
        let kills = |role| self.tally.kills_of(role).to_string();
        let crashes = |server| {
            self.crashed
                .iter()
                .filter(|crashed| **crashed == server)
                .count()
                .to_string()
        };
        let errors = &self.verdict;
        writeln!(
            f,
            "{} commands over {}, {} of them shots of {} players, seed {}\n",
            field.messages,
            broker.name(),
            self.attempts,
            field.players,
            field.seed
        )?;
        table(
            f,
            &[
                ("commands sent, duplicates included", self.sent.to_string()),
                (
                    "commands redelivered to the targets",
                    self.given_again().to_string(),
                ),
                (
                    "facts received again by the observer",
                    self.told_again().to_string(),
                ),
                ("producers killed", kills(Role::Producer)),
                ("targets killed", kills(Role::Targets)),
                ("relays killed", kills(Role::Relay)),
                ("boards killed", kills(Role::Board)),
                ("observers killed", kills(Role::Observer)),
                ("broker killed and restarted", crashes(Server::Broker)),
                ("database killed and restarted", crashes(Server::Database)),
                (
                    "processes that ended unexpectedly",
                    self.tally.ends.to_string(),
                ),
                ("seconds", format!("{:.1}", self.played.as_secs_f64())),
            ],
        )?;
        table(
            f,
            &[
                (
                    "contradictions (hit and missed)",
                    errors.range.contradictions.to_string(),
                ),
                (
                    "attempts without exactly one fact",
                    errors.not_one_fact.to_string(),
                ),
                ("lost messages", errors.range.lost_messages.to_string()),
                (
                    "dead letters and parked effects",
                    errors.given_up.to_string(),
                ),
                (
                    "moves not made exactly once",
                    errors.moves_not_once.to_string(),
                ),
                (
                    "hits counted more than once",
                    errors.counted_again.to_string(),
                ),
                (
                    "wrong hit counts (players)",
                    errors.range.wrong_hit_counts.to_string(),
                ),
                ("hits off by", errors.range.hits_off_by.to_string()),
                (
                    "rows different from the first fact",
                    errors.range.torn_attempts.to_string(),
                ),
                (
                    "facts with different ids or bytes",
                    errors.range.unequal_duplicates.to_string(),
                ),
            ],
        )?;
        let board = if errors.range.hits_off_by == 0 {
            "right"
        } else {
            "wrong"
        };
        writeln!(f, "the leader board is {board}")
    }
}

fn table(f: &mut fmt::Formatter<'_>, lines: &[(&str, String)]) -> fmt::Result {
    for (label, value) in lines {
        writeln!(f, "{label:<LABEL$}{value:>COLUMN$}")?;
    }
    writeln!(f, "{}", "-".repeat(LABEL + COLUMN))
}
