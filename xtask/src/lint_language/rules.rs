//! The words that the style guide avoids, and how many of them are accepted.

use anyhow::Result;
use regex::Regex;

/// The longest line, in characters.
pub const MAX_COLUMNS: usize = 100;
/// The longest name of a test, in characters.
pub const MAX_TEST_NAME: usize = 60;

/// The name of the rule for lines above [`MAX_COLUMNS`].
pub const LONG_LINE: &str = "long line";
/// The name of the rule for names above [`MAX_TEST_NAME`].
pub const LONG_TEST_NAME: &str = "long test name";

/// Words and constructions that are counted together.
pub struct Rule {
    pub name: &'static str,
    /// The highest accepted number of findings per 1,000 words.
    pub limit_per_thousand_words: f64,
    words: Regex,
}

impl Rule {
    /// Returns the text of each place in a passage that has one of the words.
    pub fn find(&self, passage: &str) -> Vec<String> {
        self.words
            .find_iter(passage)
            .map(|found| found.as_str().to_owned())
            .collect()
    }
}

/// Name, limit per 1,000 words, and words. The limits of the first two rules are about four times
/// what the PostgreSQL manual, River and tokio have.
const RULES: [(&str, f64, &str); 6] = [
    (
        "who",
        0.2,
        "who|whoever|whom|nobody|somebody|anybody|someone|anyone",
    ),
    ("answer", 0.3, "answers?|answered|answering"),
    ("tell", 0.1, "tells|(?:is|are|was|were|be|been) told"),
    ("refuse", 0.5, "refus(?:e|es|ed|ing)"),
    ("riddle", 0.0, "(?:is|are) at it|can be had"),
    (
        "retired name",
        0.0,
        "desks?|shelf|glimpses?|glances?|loans?|lanes?|mishaps?|crew|tongues?",
    ),
];

/// Returns all rules. Fails when the words of a rule are not a valid regular expression.
pub fn rules() -> Result<Vec<Rule>> {
    RULES
        .into_iter()
        .map(|(name, limit_per_thousand_words, words)| {
            Ok(Rule {
                name,
                limit_per_thousand_words,
                words: Regex::new(&format!(r"(?i)\b(?:{words})\b"))?,
            })
        })
        .collect()
}
