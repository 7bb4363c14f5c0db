//! The report of a run, printed as a table.

use std::{collections::BTreeMap, fmt, time::Duration};

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
    /// The time during which the consumers ran.
    pub played: Duration,
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

    fn deliveries_per_s(&self) -> f64 {
        self.counts.deliveries as f64 / self.played.as_secs_f64()
    }
}

/// A line of the table: its label, and the function that returns its value.
type Line = (&'static str, fn(&SystemReport) -> String);

const TRAFFIC: &[Line] = &[
    ("deliveries", |r| r.counts.deliveries.to_string()),
    ("duplicates among them", |r| r.counts.duplicates.to_string()),
    ("acknowledgements lost", |r| r.counts.lost_acks.to_string()),
    ("consumers killed", |r| r.kills.to_string()),
    ("facts published again", |r| r.retold_facts().to_string()),
    ("seconds", |r| format!("{:.1}", r.played.as_secs_f64())),
    ("deliveries per second", |r| {
        format!("{:.0}", r.deliveries_per_s())
    }),
];

const ERRORS: &[Line] = &[
    ("contradictions (hit and missed)", |r| {
        r.verdict.contradictions.to_string()
    }),
    ("wrong hit counts (players)", |r| {
        r.verdict.wrong_hit_counts.to_string()
    }),
    ("hits off by", |r| r.verdict.hits_off_by.to_string()),
    ("lost messages", |r| r.verdict.lost_messages.to_string()),
    ("rows different from the first fact", |r| {
        r.verdict.torn_attempts.to_string()
    }),
    ("facts with different ids or bytes", |r| {
        r.verdict.unequal_duplicates.to_string()
    }),
];

const LABEL: usize = 36;
const COLUMN: usize = 10;

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
        for (label, value) in ERRORS {
            self.line(f, label, value)?;
        }
        Ok(())
    }
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
