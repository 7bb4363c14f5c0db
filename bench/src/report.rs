//! Prints figures as a table: what was measured, the baseline, the target and whether it is met.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The figures of one part of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub tables: Vec<Table>,
    pub curves: Vec<Curve>,
}

impl From<Vec<Table>> for Figures {
    fn from(tables: Vec<Table>) -> Self {
        Self {
            tables,
            curves: Vec::new(),
        }
    }
}

/// A figure of both sides at several points.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curve {
    pub name: String,
    /// What the positions are, with their unit.
    pub axis: String,
    pub at: Vec<f64>,
    pub ours: Vec<f64>,
    pub theirs: Vec<f64>,
}

/// The target of a ratio.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// At most this far from 1.
    Within(f64),
    /// No target: the figure is for information only.
    None,
}

impl Target {
    /// Returns the ratio that the target limits; `None` if there is no limit.
    pub fn limit(self) -> Option<f64> {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) => Some(limit),
            Self::Within(_) | Self::None => None,
        }
    }

    /// Returns whether a ratio meets the target.
    pub fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::Within(share) => (ratio - 1.0).abs() <= share,
            Self::None => true,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least:.2}x"),
            Self::AtMost(most) => write!(f, "<= {most:.2}x"),
            Self::Within(share) => write!(f, "1 +- {share:.2}"),
            Self::None => f.write_str("-"),
        }
    }
}

/// The figures of both sides, round by round.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    pub ours: Vec<f64>,
    pub theirs: Vec<f64>,
}

/// The ratio of two sides over all rounds: the median, the smallest and the largest ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}x", self.median)
    }
}

impl Ratio {
    /// Returns the smallest and the largest ratio as text.
    pub fn range(&self) -> String {
        format!("{:.2}..{:.2}", self.least, self.most)
    }
}

impl Rounds {
    /// Returns the ratio over the rounds in which both sides were measured.
    pub fn ratio(&self) -> Ratio {
        let ratios = self.ratios();
        Ratio {
            median: median(&ratios),
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            most: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// Returns the ratio of each round.
    fn ratios(&self) -> Vec<f64> {
        self.ours
            .iter()
            .zip(&self.theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }
}

/// One line of a table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub what: String,
    ours: String,
    theirs: String,
    pub ratio: f64,
    spread: String,
    pub target: Target,
}

/// A table of figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    notes: Vec<String>,
    columns: [String; 2],
    pub lines: Vec<Line>,
}

impl Table {
    /// Returns an empty table. `columns` name the two sides, with the unit.
    pub fn new(title: &str, columns: [&str; 2]) -> Self {
        Self {
            title: title.to_owned(),
            notes: Vec::new(),
            columns: columns.map(str::to_owned),
            lines: Vec::new(),
        }
    }

    /// Adds a note above the figures.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a line with the medians of the rounds.
    pub fn rounds(&mut self, what: &str, rounds: &Rounds, target: Target) {
        let ratio = rounds.ratio();
        self.lines.push(Line {
            what: what.to_owned(),
            ours: figure(median(&rounds.ours)),
            theirs: figure(median(&rounds.theirs)),
            ratio: ratio.median,
            spread: ratio.range(),
            target,
        });
    }

    /// Adds a line with two figures.
    pub fn pair(&mut self, what: &str, ours: f64, theirs: f64, target: Target) {
        self.lines.push(Line {
            what: what.to_owned(),
            ours: figure(ours),
            theirs: figure(theirs),
            ratio: ours / theirs,
            spread: String::new(),
            target,
        });
    }

    /// Returns the rows of a table in Markdown.
    pub fn markdown(&self) -> String {
        let [ours, theirs] = &self.columns;
        let mut rows = format!("| **{}** | {ours} | {theirs} | | | |\n", self.title.trim());
        for line in &self.lines {
            let Line { ours, theirs, .. } = line;
            let (target, result) = match line.target {
                Target::None => (String::new(), ""),
                target if target.is_met_by(line.ratio) => (target.to_string(), "met"),
                target => (target.to_string(), "**missed**"),
            };
            let what = line.what.split_whitespace().collect::<Vec<_>>().join(" ");
            rows += &format!(
                "| {what} | {ours} | {theirs} | {:.2}x | {target} | {result} |\n",
                line.ratio
            );
        }
        rows
    }

    /// Returns whether every line meets its target.
    pub fn is_met(&self) -> bool {
        self.lines
            .iter()
            .all(|line| line.target.is_met_by(line.ratio))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        let head = [
            "",
            &self.columns[0],
            &self.columns[1],
            "ratio",
            "range",
            "target",
            "result",
        ]
        .map(str::to_owned);
        let body = self.lines.iter().map(|line| {
            [
                line.what.clone(),
                line.ours.clone(),
                line.theirs.clone(),
                format!("{:.2}x", line.ratio),
                line.spread.clone(),
                line.target.to_string(),
                match line.target {
                    Target::None => String::new(),
                    target if target.is_met_by(line.ratio) => "met".to_owned(),
                    _ => "MISSED".to_owned(),
                },
            ]
        });
        let lines: Vec<_> = std::iter::once(head).chain(body).collect();
        let width = |column: usize| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        for line in &lines {
            let mut text = format!("  {:<1$}", line[0], width(0));
            for (column, cell) in line.iter().enumerate().skip(1) {
                text += &format!("  {:>1$}", cell, width(column));
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Returns the median: the middle value, or the mean of the two middle values of an even count.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        even if even.is_multiple_of(2) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

/// Formats a figure with three significant digits, or with all digits of the integer part.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        medium if medium >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_count_is_mean_of_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn ratio_is_computed_within_its_round() {
        let mut table = Table::new("t", ["ours", "theirs"]);
        // Simulate a machine that becomes ten times faster from round to round: the figures of both
        // sides grow, and the ratio must stay 2.
        let rounds = Rounds {
            ours: vec![2.0, 20.0, 200.0],
            theirs: vec![1.0, 10.0, 100.0],
        };
        table.rounds("x", &rounds, Target::AtLeast(2.0));
        assert!(table.is_met());
        assert!(table.to_string().contains("2.00..2.00"), "{table}");
    }

    #[test]
    fn ratio_below_its_target_is_reported_as_missed() {
        let mut table = Table::new("t", ["ours", "theirs"]);
        table.pair("x", 1.1, 1.0, Target::AtLeast(1.15));
        assert!(!table.is_met());
        assert!(table.to_string().contains("MISSED"));
        let mut table = Table::new("t", ["ours", "theirs"]);
        table.pair("x", 0.4, 1.0, Target::AtMost(0.5));
        assert!(table.is_met());
    }
}
