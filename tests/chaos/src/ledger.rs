//! The ledger of a campaign: faults with their minimum, traffic, and errors.

use std::collections::BTreeMap;
use std::fmt;

use super::checker::Violation;

/// The ledger. It is printed as Markdown that is aligned for reading as plain text.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// The settings and versions of the campaign, as names and values.
    pub header: Vec<(&'static str, String)>,
    /// The kinds of faults, with their counts and minimums.
    pub faults: Vec<FaultRow>,
    /// The numbers of messages that were sent and handled, as names and values.
    pub traffic: Vec<(&'static str, u64)>,
    /// The counts of all errors, which must all be zero. An error without a count was not checked.
    pub errors: BTreeMap<Violation, u64>,
}

/// One kind of fault.
#[derive(Clone, Debug)]
pub struct FaultRow {
    /// The name of the fault.
    pub name: String,
    /// The number of times that the fault happened.
    pub count: u64,
    /// The minimum of `count` in a campaign of this length.
    pub minimum: u64,
}

impl Ledger {
    /// Returns whether the campaign has passed: every fault has met its minimum, every error was
    /// checked, and no error happened.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.errors.len() == Violation::ALL.len()
            && self.errors.values().all(|count| *count == 0)
            && self.faults.iter().all(|fault| fault.count >= fault.minimum)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table(f, ["campaign", ""], &[42, 24])?;
        for (name, value) in &self.header {
            writeln!(f, "| {name:<42} | {value:<24} |")?;
        }
        writeln!(f)?;
        table(f, ["fault", "count", "minimum", ""], &[42, 9, 9, 7])?;
        for FaultRow {
            name,
            count,
            minimum,
        } in &self.faults
        {
            let verdict = if count < minimum { "TOO FEW" } else { "ok" };
            writeln!(
                f,
                "| {name:<42} | {count:>9} | {minimum:>9} | {verdict:<7} |"
            )?;
        }
        writeln!(f)?;
        table(f, ["traffic", "count"], &[52, 9])?;
        for (name, count) in &self.traffic {
            writeln!(f, "| {name:<52} | {count:>9} |")?;
        }
        writeln!(f)?;
        table(f, ["error", "count", "expected", ""], &[52, 9, 9, 7])?;
        for violation in Violation::ALL {
            let name = violation.name();
            let count = self.errors.get(&violation);
            let verdict = if count == Some(&0) { "ok" } else { "ERROR" };
            let count = count.map_or("?".to_owned(), u64::to_string);
            writeln!(f, "| {name:<52} | {count:>9} | {:>9} | {verdict:<7} |", 0)?;
        }
        let verdict = if self.is_green() { "GREEN" } else { "RED" };
        writeln!(f, "\nThe campaign is {verdict}.")
    }
}

/// Writes the head of a table. Columns of numbers are aligned to the right.
fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    names: [&str; N],
    widths: &[usize; N],
) -> fmt::Result {
    for (name, width) in names.iter().zip(widths) {
        write!(f, "| {name:<width$} ")?;
    }
    writeln!(f, "|")?;
    for (number, width) in widths.iter().enumerate() {
        let line = "-".repeat(*width + 1);
        let is_number = *width == 9 && number > 0;
        write!(f, "|{line}{}", if is_number { ":" } else { "-" })?;
    }
    writeln!(f, "|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn green() -> Ledger {
        Ledger {
            faults: vec![FaultRow {
                name: "promotion".to_owned(),
                count: 1,
                minimum: 1,
            }],
            errors: Violation::ALL
                .into_iter()
                .map(|violation| (violation, 0))
                .collect(),
            ..Ledger::default()
        }
    }

    /// A ledger with an error does not pass, and shows the error in exactly one row.
    #[test]
    fn each_error_row_turns_the_ledger_red() {
        assert!(green().is_green());
        assert!(!green().to_string().contains("ERROR"));
        for violation in Violation::ALL {
            let mut ledger = green();
            ledger.errors.insert(violation, 1);
            assert!(!ledger.is_green(), "{violation:?}");
            let text = ledger.to_string();
            let red: Vec<_> = text
                .lines()
                .filter(|line| line.ends_with("| ERROR   |"))
                .collect();
            assert_eq!(red.len(), 1, "{text}");
            assert!(red[0].contains(violation.name()), "{text}");
            assert!(text.contains("RED"), "{text}");
        }
    }

    /// A ledger does not pass when a row was not checked, or when a fault happened too rarely.
    #[test]
    fn unchecked_row_and_rare_fault_turn_the_ledger_red() {
        let mut ledger = green();
        ledger.errors.remove(&Violation::Lost);
        assert!(!ledger.is_green() && ledger.to_string().contains("ERROR"));
        let mut ledger = green();
        ledger.faults[0].count = 0;
        assert!(!ledger.is_green() && ledger.to_string().contains("TOO FEW"));
    }
}
