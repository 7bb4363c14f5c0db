//! The table at the end.

use std::{collections::BTreeMap, fmt, time::Duration};

use uuid::Uuid;

use super::{Config, System, Verdict, observer::Published, transport::Counts};

/// What came of a run, one column per system.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was played.
    pub config: Config,
    /// What came of it.
    pub systems: Vec<SystemReport>,
}

/// What came of one trial.
#[derive(Clone, Debug)]
pub struct SystemReport {
    /// Whose handlers.
    pub system: System,
    /// What the transport did.
    pub counts: Counts,
    /// Consumers that were killed.
    pub kills: u64,
    /// How long the consumers worked.
    pub played: Duration,
    /// The errors.
    pub verdict: Verdict,
    /// Every fact that was published about each attempt, in order: duplicates must equal the first,
    /// byte for byte.
    pub facts: BTreeMap<Uuid, Vec<Published>>,
}

impl Report {
    /// The column of a system.
    #[must_use]
    pub fn of(&self, system: System) -> Option<&SystemReport> {
        self.systems.iter().find(|report| report.system == system)
    }

    /// Whether idem made no error at all.
    #[must_use]
    pub fn idem_is_right(&self) -> bool {
        self.of(System::Idem)
            .is_some_and(|report| report.verdict.is_right())
    }

    /// Whether the others made some: without them the traffic was too kind to show anything.
    #[must_use]
    pub fn others_are_wrong(&self) -> bool {
        self.systems
            .iter()
            .filter(|report| report.system != System::Idem)
            .all(|report| !report.verdict.is_right())
    }
}

impl SystemReport {
    /// How many facts were published again after the first about their attempt.
    #[must_use]
    pub fn retold_facts(&self) -> usize {
        self.facts.values().map(|told| told.len() - 1).sum()
    }

    fn deliveries_per_s(&self) -> f64 {
        self.counts.deliveries as f64 / self.played.as_secs_f64()
    }
}

/// A line of the table.
type Line = (&'static str, fn(&SystemReport) -> String);

const TRAFFIC: &[Line] = &[
    ("deliveries", |r| r.counts.deliveries.to_string()),
    ("duplicates among them", |r| r.counts.duplicates.to_string()),
    ("acknowledgements lost", |r| r.counts.lost_acks.to_string()),
    ("consumers killed", |r| r.kills.to_string()),
    ("facts told again", |r| r.retold_facts().to_string()),
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
    ("attempts unlike their first fact", |r| {
        r.verdict.torn_attempts.to_string()
    }),
    ("duplicates with other id or bytes", |r| {
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
