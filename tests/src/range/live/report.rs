//! The table at the end of a run.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{LiveConfig, LiveVerdict, Role, crew::Tally, servers::Server};
use crate::range::verdict::Facts;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct LiveReport {
    /// What was played.
    pub config: LiveConfig,
    /// How many of the commands fired.
    pub attempts: usize,
    /// What the producers have sent, duplicates included.
    pub sent: u64,
    /// What targets, board and observer were given.
    pub given: [u64; 3],
    /// How many different messages each destination has claimed.
    pub claimed: BTreeMap<String, u64>,
    /// What happened to the processes.
    pub tally: Tally,
    /// The servers that were killed and restarted.
    pub crashed: Vec<Server>,
    /// Every fact that the observer heard.
    pub facts: Facts,
    /// How long it took.
    pub played: Duration,
    /// The errors.
    pub verdict: LiveVerdict,
}

impl LiveReport {
    /// Commands that were sent again.
    #[must_use]
    pub fn sent_again(&self) -> u64 {
        self.sent
            .saturating_sub(u64::from(self.config.field.messages))
    }

    /// Commands that the targets were given again.
    #[must_use]
    pub fn given_again(&self) -> u64 {
        self.given[0].saturating_sub(u64::from(self.config.field.messages))
    }

    /// Facts that the observer was told again.
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
                    "commands given to the targets again",
                    self.given_again().to_string(),
                ),
                ("facts told again", self.told_again().to_string()),
                ("producers killed", kills(Role::Producer)),
                ("targets killed", kills(Role::Targets)),
                ("relays killed", kills(Role::Relay)),
                ("boards killed", kills(Role::Board)),
                ("observers killed", kills(Role::Observer)),
                ("broker killed and restarted", crashes(Server::Broker)),
                ("database killed and restarted", crashes(Server::Database)),
                (
                    "processes that ended by themselves",
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
                ("messages given up", errors.given_up.to_string()),
                ("moves not made once", errors.moves_not_once.to_string()),
                ("hits counted again", errors.counted_again.to_string()),
                (
                    "wrong hit counts (players)",
                    errors.range.wrong_hit_counts.to_string(),
                ),
                ("hits off by", errors.range.hits_off_by.to_string()),
                (
                    "attempts unlike their first fact",
                    errors.range.torn_attempts.to_string(),
                ),
                (
                    "duplicates with other id or bytes",
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
