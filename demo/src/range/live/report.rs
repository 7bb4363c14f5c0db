//! The report of a run over a broker, printed as a table.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    config::LiveConfig, post::Role, processes::Tally, servers::Server, verdict::LiveVerdict,
};
use crate::range::{
    report::{COLUMN, ERRORS, LABEL, outcome},
    verdict::Facts,
};

/// The results of a run.
#[derive(Clone, Debug)]
pub struct LiveReport {
    /// The settings of the run.
    pub config: LiveConfig,
    /// The number of shots among the commands.
    pub attempts: usize,
    /// The number of messages that the producers have sent, duplicates included.
    pub sent: u64,
    /// The number of deliveries to the targets.
    pub given: u64,
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
    /// Returns the number of deliveries to the targets beyond one for each command.
    #[must_use]
    pub fn given_again(&self) -> u64 {
        self.given
            .saturating_sub(u64::from(self.config.field.messages))
    }
}

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LiveConfig { broker, field, .. } = &self.config;
        let again: usize = self.facts.values().map(|facts| facts.len() - 1).sum();
        let kills = |role| u64::from(self.tally.kills_of(role));
        let crashes = |server| self.crashed.iter().filter(|c| **c == server).count() as u64;
        writeln!(
            f,
            "{} commands over {}, {} of them shots of {} players, seed {}\n",
            field.messages,
            broker.name(),
            self.attempts,
            field.players,
            field.seed
        )?;
        for (label, count) in [
            ("commands sent, duplicates included", self.sent),
            ("commands redelivered to the targets", self.given_again()),
            ("results published again", again as u64),
            ("producers killed", kills(Role::Producer)),
            ("targets killed", kills(Role::Targets)),
            ("relays killed", kills(Role::Relay)),
            ("boards killed", kills(Role::Board)),
            ("observers killed", kills(Role::Observer)),
            ("broker killed and restarted", crashes(Server::Broker)),
            ("database killed and restarted", crashes(Server::Database)),
            (
                "processes that ended unexpectedly",
                u64::from(self.tally.ends),
            ),
            ("seconds", self.played.as_secs()),
        ] {
            line(f, label, count)?;
        }
        rule(f)?;
        for (label, count) in ERRORS {
            line(f, label, count(&self.verdict.range))?;
        }
        for (label, count) in [
            (
                "shots without one recorded result",
                self.verdict.not_one_fact,
            ),
            ("moves not made exactly once", self.verdict.moves_not_once),
            ("dead letters and parked effects", self.verdict.given_up),
        ] {
            line(f, label, count as u64)?;
        }
        rule(f)?;
        line(f, "all results are", outcome(self.verdict.is_right()))
    }
}

fn line(f: &mut fmt::Formatter<'_>, label: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "{label:<LABEL$}{value:>COLUMN$}")
}

fn rule(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{}", "-".repeat(LABEL + COLUMN))
}
