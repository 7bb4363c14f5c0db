//! The end of the output: what was shown, what it cost, and what to read next.

use std::fmt;

use crate::range::{Report as Errors, SystemReport};
use idem_bench::protection::{Contestant, Report as Cost};

/// The results of both parts.
pub struct Summary<'a> {
    pub errors: &'a Errors,
    pub cost: &'a Cost,
}

const NEXT: &str = "
What to read next

  README.md                             the idea and the API on one page
  docs/consumers.md                     the transaction of a message, in SQL
  runtime/README.md                     the Rust runtime: consumers and relays
  docs/benchmarks.md                    all measurements, also missed targets
  cargo xtask psql                      a database with idem, to try it
  cargo xtask demo --broker rabbitmq    a real broker, with servers that crash
";

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "What this run showed\n")?;
        for report in &self.errors.systems {
            let lines = error_lines(report).join("\n                ");
            writeln!(f, "  {:<13} {lines}", report.system.name())?;
        }
        if !self.errors.idem_is_right() {
            writeln!(f, "\n  idem made errors, which is a bug in idem.")?;
        } else if !self.errors.others_are_wrong() {
            writeln!(
                f,
                "\n  This run had too few faults to show a difference.\n  \
                 Raise --duplicates, --kill or --shots."
            )?;
        }
        self.write_cost(f)?;
        f.write_str(NEXT)
    }
}

impl Summary<'_> {
    fn write_cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rates, ms) = (&self.cost.rates, |of| self.cost.ms_per_message(of));
        let (alone, by_hand, idem) = (
            Contestant::BusinessAlone,
            Contestant::ByHand,
            Contestant::Idem,
        );
        writeln!(
            f,
            "
What protection cost

  A client needed {:.2} ms for a message without protection, {:.2} ms with an
  inbox and an outbox by hand, and {:.2} ms with idem. So the rate of idem was
  {} that of the transaction without protection, and {} that of the one by
  hand. The transaction has only one UPDATE. The more a handler does, the
  smaller is the share of its protection.

{}",
            ms(alone),
            ms(by_hand),
            ms(idem),
            rates.ratio(idem, alone),
            rates.ratio(idem, by_hand),
            indented(&self.cost.longest_step()),
        )
    }
}

/// Returns the text in lines of at most 78 characters, each with two spaces before it.
fn indented(text: &str) -> String {
    let mut lines = vec![String::from(" ")];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 78 => *line += &format!(" {word}"),
            _ => lines.push(format!("  {word}")),
        }
    }
    lines.join("\n")
}

/// The number of kinds of errors that are listed for a system.
const LISTED: usize = 3;

/// Returns the most harmful errors of a system, one in each line.
fn error_lines(report: &SystemReport) -> Vec<String> {
    let errors = report.errors();
    if errors.is_empty() {
        return vec!["no error".to_owned()];
    }
    let mut lines: Vec<_> = errors
        .iter()
        .take(LISTED)
        .map(|(label, count)| format!("{label}: {count}"))
        .collect();
    match errors.len().saturating_sub(LISTED) {
        0 => {}
        1 => lines.push("and one further kind of errors".to_owned()),
        more => lines.push(format!("and {more} further kinds of errors")),
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::range::{Config, System, Verdict, transport::Counts};
    use idem_bench::protection::{Rates, Settings};

    fn summary(verdicts: [Verdict; 3]) -> String {
        let systems = System::ALL.into_iter().zip(verdicts);
        let errors = Errors {
            config: Config::new(""),
            systems: systems
                .map(|(system, verdict)| SystemReport {
                    system,
                    counts: Counts::default(),
                    kills: 0,
                    verdict,
                    facts: BTreeMap::new(),
                })
                .collect(),
        };
        let mut rates = Rates::default();
        rates.add(Contestant::BusinessAlone, 2_000.0);
        rates.add(Contestant::ByHand, 800.0);
        rates.add(Contestant::Idem, 1_000.0);
        let cost = Cost {
            settings: Settings {
                clients: 8,
                rounds: 1,
                round_ms: 700,
                payload_bytes: 147,
                retained: 2_000_000,
                filled: Duration::from_secs(14),
                processors: 2,
                server: "PostgreSQL 15.20".to_owned(),
            },
            rates,
            steps_ms: [[0.5, 0.5, 3.0], [3.0, 1.0, 6.0], [1.5, 0.75, 5.75]],
        };
        let summary = Summary {
            errors: &errors,
            cost: &cost,
        };
        summary.to_string()
    }

    fn wrong() -> Verdict {
        Verdict {
            lost_messages: 31,
            doubled_messages: 1_893,
            wrong_hit_counts: 20,
            hits_off_by: 640,
            ..Verdict::default()
        }
    }

    /// The summary has the errors of each system in words, the cost, and fits into 80 columns.
    #[test]
    fn summary_has_errors_in_words_and_the_cost() {
        let text = summary([wrong(), wrong(), Verdict::default()]);
        let words: Vec<_> = text.split_whitespace().collect();
        let words = words.join(" ");
        for part in [
            "unprotected messages lost: 31 messages that took effect twice: 1893 players with a \
             wrong score: 20 and one further kind of errors by id messages lost: 31",
            "idem no error What protection cost",
            "4.00 ms for a message without protection, 10.00 ms",
            "8.00 ms with idem",
            "0.50x that of the transaction without protection",
            "1.25x that of the one by hand",
            "5.75 ms pass in \"outgoing, COMMIT\"",
            "docs/consumers.md",
        ] {
            assert!(words.contains(part), "{part:?} is missing:\n{text}");
        }
        assert!(!text.contains("bug in idem"), "{text}");
        assert!(!text.contains("too few faults"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    /// An error of idem is called a bug. When a system without idem made no error, the run had too
    /// few faults.
    #[test]
    fn unexpected_results_are_named() {
        let text = summary([wrong(), wrong(), wrong()]);
        assert!(
            text.contains("a bug in idem") && !text.contains("no error"),
            "{text}"
        );
        let text = summary([Verdict::default(), wrong(), Verdict::default()]);
        assert!(text.contains("too few faults"), "{text}");
    }

    /// Every file of the repository that the summary names exists.
    #[test]
    fn files_to_read_next_exist() {
        let names = NEXT.split_whitespace().filter(|word| word.ends_with(".md"));
        let missing: Vec<_> = names
            .filter(|name| !idem_cluster::workspace_root().join(name).exists())
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
