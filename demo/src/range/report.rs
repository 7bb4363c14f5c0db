//! The report of a run, printed as a table.

use std::{collections::BTreeMap, fmt};

use uuid::Uuid;

use super::{Config, System, Verdict, observer::Published, transport::Counts};

/// The results of a run, with one column per system.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings of the run.
    pub config: Config,
    /// The results of each system.
    pub systems: Vec<SystemReport>,
}

/// The results of one trial.
#[derive(Clone, Debug)]
pub struct SystemReport {
    /// The system that was tested.
    pub system: System,
    /// The counts of the transport.
    pub counts: Counts,
    /// The number of consumers that were killed.
    pub kills: u64,
    /// The errors.
    pub verdict: Verdict,
    /// All published facts about each attempt, in order. Duplicates must equal the first fact byte
    /// for byte.
    pub facts: BTreeMap<Uuid, Vec<Published>>,
}

impl Report {
    /// Returns the results of a system.
    #[must_use]
    pub fn of(&self, system: System) -> Option<&SystemReport> {
        self.systems.iter().find(|report| report.system == system)
    }

    /// Returns whether idem made no error.
    #[must_use]
    pub fn idem_is_right(&self) -> bool {
        self.of(System::Idem)
            .is_some_and(|report| report.verdict.is_right())
    }

    /// Returns whether all systems except idem made errors. If not, the run had too few faults to
    /// show a difference.
    #[must_use]
    pub fn others_are_wrong(&self) -> bool {
        self.systems
            .iter()
            .filter(|report| report.system != System::Idem)
            .all(|report| !report.verdict.is_right())
    }
}

impl SystemReport {
    /// Returns the number of facts that were published after the first one about their attempt.
    #[must_use]
    pub fn retold_facts(&self) -> usize {
        self.facts.values().map(|told| told.len() - 1).sum()
    }

    /// Returns the kinds of errors that this system made, with their numbers, the most harmful
    /// first.
    #[must_use]
    pub fn errors(&self) -> Vec<(&'static str, u64)> {
        ERRORS
            .iter()
            .map(|(label, count)| (*label, count(&self.verdict)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

/// A line of the table: its label, and the function that returns its value.
type Line = (&'static str, fn(&SystemReport) -> String);

const TRAFFIC: &[Line] = &[
    ("deliveries", |r| r.counts.deliveries.to_string()),
    ("duplicates among them", |r| r.counts.duplicates.to_string()),
    ("acknowledgements lost", |r| r.counts.lost_acks.to_string()),
    ("consumers killed", |r| r.kills.to_string()),
    ("results published again", |r| r.retold_facts().to_string()),
];

/// A kind of errors: its label, and the function that returns their number.
pub type ErrorKind = (&'static str, fn(&Verdict) -> u64);

/// The kinds of errors, the most harmful first.
pub const ERRORS: &[ErrorKind] = &[
    ("messages lost", |v| v.lost_messages as u64),
    ("messages that took effect twice", |v| {
        v.doubled_messages as u64
    }),
    ("shots published as hit and as miss", |v| {
        v.contradictions as u64
    }),
    ("players with a wrong score", |v| v.wrong_hit_counts as u64),
    ("all scores together are off by", |v| v.hits_off_by),
    ("rows that differ from the first result", |v| {
        v.torn_attempts as u64
    }),
    ("results repeated with other ids or bytes", |v| {
        v.unequal_duplicates as u64
    }),
];

/// The width of the labels.
pub const LABEL: usize = 41;
/// The width of a column of numbers.
pub const COLUMN: usize = 13;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config {
            shots,
            players,
            consumers,
            seed,
            ..
        } = &self.config;
        writeln!(
            f,
            "{shots} shots of {players} players, {consumers} consumers, seed {seed}\n"
        )?;
        self.line(f, "", |report| report.system.name().to_owned())?;
        self.rule(f)?;
        for (label, value) in TRAFFIC {
            self.line(f, label, value)?;
        }
        self.rule(f)?;
        for (label, count) in ERRORS {
            self.line(f, label, |report| count(&report.verdict).to_string())?;
        }
        self.rule(f)?;
        self.line(f, "all results are", |report| {
            outcome(report.verdict.is_right()).to_owned()
        })
    }
}

/// Returns the last word of a report.
pub fn outcome(is_right: bool) -> &'static str {
    if is_right { "right" } else { "wrong" }
}

impl Report {
    fn line(
        &self,
        f: &mut fmt::Formatter<'_>,
        label: &str,
        value: impl Fn(&SystemReport) -> String,
    ) -> fmt::Result {
        write!(f, "{label:<LABEL$}")?;
        for report in &self.systems {
            write!(f, "{:>COLUMN$}", value(report))?;
        }
        writeln!(f)
    }

    fn rule(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", "-".repeat(LABEL + COLUMN * self.systems.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdict: Verdict) -> SystemReport {
        SystemReport {
            system: System::Idem,
            counts: Counts::default(),
            kills: 0,
            verdict,
            facts: BTreeMap::new(),
        }
    }

    /// A verdict without errors has no kinds of errors. Each of its numbers is one kind.
    #[test]
    fn each_number_of_a_verdict_is_a_kind_of_error() {
        assert_eq!(report(Verdict::default()).errors(), []);
        let all = Verdict {
            contradictions: 1,
            wrong_hit_counts: 2,
            hits_off_by: 3,
            lost_messages: 4,
            doubled_messages: 5,
            torn_attempts: 6,
            unequal_duplicates: 7,
        };
        let mut counts: Vec<_> = report(all)
            .errors()
            .iter()
            .map(|(_, count)| *count)
            .collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7]);
    }
}
