//! `cargo xtask lint-language`: measures the language of comments and documentation.
//!
//! `text` finds the text that a person reads in a file, `rules` has the words and their limits, and
//! `names` finds the names of tests. A file that breaks a rule is listed with its line.

mod names;
mod rules;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::context::Context;
use rules::{MAX_COLUMNS, MAX_TEST_NAME, Rule};
use text::Kind;

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// What is wrong, for example the name of a rule.
    rule: &'static str,
    /// The line, counted from 1.
    line: usize,
    /// The words or the name that were found.
    text: String,
}

/// The counts and the findings of the checked files.
struct Report {
    rules: Vec<Rule>,
    words: usize,
    /// The findings with the path of their file.
    findings: Vec<(String, Finding)>,
}

/// Checks all files of the repository that people read. Fails when a limit is exceeded, and lists
/// the places of the rules that failed.
pub fn lint(context: &Context) -> Result<()> {
    let sh = &context.sh;
    let mut report = Report::new()?;
    for path in cmd!(sh, "git ls-files").quiet().read()?.lines() {
        let Some(kind) = Kind::of(Path::new(path)) else {
            continue;
        };
        let content = fs::read_to_string(context.root.join(path))
            .with_context(|| format!("cannot read {path}"))?;
        report.add(path, kind, &content);
    }
    let failed = report.failed();
    for (path, finding) in &report.findings {
        if failed.contains(&finding.rule) {
            println!(
                "{path}:{}: {}: {}",
                finding.line, finding.rule, finding.text
            );
        }
    }
    print!("{}", report.summary());
    ensure!(
        failed.is_empty(),
        "the language of the repository exceeds these limits: {}",
        failed.join(", ")
    );
    Ok(())
}

/// Counts the words of a file and finds what breaks a rule.
fn check(rules: &[Rule], kind: Kind, content: &str) -> (usize, Vec<Finding>) {
    let mut words = 0;
    let mut findings = Vec::new();
    for (line, passage) in text::passages(kind, content) {
        words += passage.split_whitespace().count();
        for rule in rules {
            for found in rule.find(&passage) {
                findings.push(Finding {
                    rule: rule.name,
                    line,
                    text: found,
                });
            }
        }
    }
    findings.extend(
        text::long_lines(kind, content)
            .into_iter()
            .map(|(line, columns)| Finding {
                rule: rules::LONG_LINE,
                line,
                text: format!("{columns} columns, at most {MAX_COLUMNS}"),
            }),
    );
    if kind == Kind::Rust {
        for (line, name) in names::tests(content) {
            if name.len() > MAX_TEST_NAME {
                findings.push(Finding {
                    rule: rules::LONG_TEST_NAME,
                    line,
                    text: format!("{name}: {} characters", name.len()),
                });
            }
        }
    }
    (words, findings)
}

impl Report {
    fn new() -> Result<Self> {
        Ok(Self {
            rules: rules::rules()?,
            words: 0,
            findings: Vec::new(),
        })
    }

    /// Adds the words and the findings of a file.
    fn add(&mut self, path: &str, kind: Kind, content: &str) {
        let (words, findings) = check(&self.rules, kind, content);
        self.words += words;
        let located = findings
            .into_iter()
            .map(|finding| (path.to_owned(), finding));
        self.findings.extend(located);
    }

    /// Returns the number of findings of each rule.
    fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for (_, finding) in &self.findings {
            *counts.entry(finding.rule).or_default() += 1;
        }
        counts
    }

    /// Returns the number of findings per 1,000 words.
    fn per_thousand_words(&self, count: usize) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a repository has fewer words")]
        let rate = 1000.0 * count as f64 / self.words.max(1) as f64;
        rate
    }

    /// Returns the rules with an exceeded limit.
    fn failed(&self) -> Vec<&'static str> {
        let counts = self.counts();
        let count = |rule| counts.get(rule).copied().unwrap_or_default();
        let mut failed: Vec<_> = self
            .rules
            .iter()
            .filter(|rule| {
                self.per_thousand_words(count(rule.name)) > rule.limit_per_thousand_words
            })
            .map(|rule| rule.name)
            .collect();
        let without_limit = [rules::LONG_LINE, rules::LONG_TEST_NAME];
        failed.extend(without_limit.into_iter().filter(|rule| count(rule) > 0));
        failed
    }

    fn summary(&self) -> String {
        let counts = self.counts();
        let count = |rule| counts.get(rule).copied().unwrap_or_default();
        let mut summary = format!("{} words of comments and documentation\n", self.words);
        for rule in &self.rules {
            summary.push_str(&format!(
                "{}: {}, {:.2} per 1,000 words, at most {:.2}\n",
                rule.name,
                count(rule.name),
                self.per_thousand_words(count(rule.name)),
                rule.limit_per_thousand_words
            ));
        }
        for rule in [rules::LONG_LINE, rules::LONG_TEST_NAME] {
            summary.push_str(&format!("{rule}: {}, at most 0\n", count(rule)));
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(kind: Kind, content: &str) -> Report {
        let mut report = Report::new().unwrap();
        report.add("file", kind, content);
        report
    }

    #[test]
    fn plain_text_breaks_no_rule() {
        let report = report(
            Kind::Rust,
            "/// Returns the number of claims.\n#[test]\nfn short_name() {}\n",
        );
        assert_eq!(report.words, 5);
        assert!(report.failed().is_empty(), "{}", report.summary());
    }

    #[test]
    fn each_rule_is_reported_when_it_is_broken() {
        let name = "a".repeat(MAX_TEST_NAME + 1);
        let column = "b".repeat(MAX_COLUMNS + 1);
        let text = format!(
            "// Nobody answers: the caller is told that the lease is at it, and a desk refuses.\n\
             #[test]\nfn {name}() {{ let _ = \"{column}\"; }}\n"
        );
        let report = report(Kind::Rust, &text);
        let mut expected: Vec<_> = report.rules.iter().map(|rule| rule.name).collect();
        expected.extend([rules::LONG_LINE, rules::LONG_TEST_NAME]);
        assert_eq!(report.failed(), expected);
    }

    #[test]
    fn limit_is_a_share_of_the_words() {
        let mut text = "word ".repeat(4_999);
        text.push_str("somebody");
        assert!(
            !report(Kind::Markdown, &wrapped(&text))
                .failed()
                .contains(&"who")
        );
        text.push_str(" nobody");
        assert!(
            report(Kind::Markdown, &wrapped(&text))
                .failed()
                .contains(&"who")
        );
    }

    /// Returns the same words, ten in a line.
    fn wrapped(text: &str) -> String {
        let words: Vec<_> = text.split_whitespace().collect();
        let lines: Vec<_> = words.chunks(10).map(|line| line.join(" ")).collect();
        lines.join("\n")
    }
}
