//! Finds the text that a person reads in a file: comments and prose, without code.

use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

use super::rules::MAX_COLUMNS;

/// The kind of a file. It decides how the text of the file is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rust,
    Sql,
    Markdown,
    /// Comments begin with `#`.
    Hash,
}

impl Kind {
    /// Returns the kind by the extension of the file, or `None` for data and generated files.
    pub fn of(path: &Path) -> Option<Self> {
        if path.starts_with("sql/install") {
            return None;
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => Some(Self::Rust),
            Some("sql") => Some(Self::Sql),
            Some("md") => Some(Self::Markdown),
            Some("toml" | "sh" | "spec" | "service") => Some(Self::Hash),
            _ => path.ends_with(".ci/run").then_some(Self::Hash),
        }
    }
}

/// Returns comments and prose with the number of their line.
pub fn passages(kind: Kind, content: &str) -> Vec<(usize, String)> {
    match kind {
        Kind::Rust => rust_comments(content),
        Kind::Sql => line_comments(content, "--"),
        Kind::Hash => line_comments(content, "#"),
        Kind::Markdown => prose(content),
    }
}

/// Returns the lines above [`MAX_COLUMNS`] with their length. Rows of tables and code blocks in
/// Markdown may be longer, and so may a line that has no space at which it can be broken.
pub fn long_lines(kind: Kind, content: &str) -> Vec<(usize, usize)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(content.lines()) {
        let text = line.trim();
        if kind == Kind::Markdown && text.starts_with("```") {
            is_code = !is_code;
        }
        let is_free = kind == Kind::Markdown && (is_code || text.starts_with('|'));
        let columns = line.chars().count();
        if columns > MAX_COLUMNS && text.contains(' ') && !is_free {
            lines.push((number, columns));
        }
    }
    lines
}

fn rust_comments(content: &str) -> Vec<(usize, String)> {
    let mut comments = Vec::new();
    let mut position = 0;
    let mut line = 1;
    for token in tokenize(content, FrontmatterAllowed::No) {
        let end = position + token.len as usize;
        let text = &content[position..end];
        if let TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } = token.kind {
            let words = text.trim_start_matches(['/', '!', '*']).trim();
            comments.push((line, words.to_owned()));
        }
        line += text.matches('\n').count();
        position = end;
    }
    comments
}

fn line_comments(content: &str, mark: &str) -> Vec<(usize, String)> {
    let lines = (1..).zip(content.lines());
    lines
        .filter_map(|(number, line)| {
            let (code, comment) = line.split_once(mark)?;
            // After an odd number of quotes, the comment mark is inside a string.
            let is_comment = code.matches(['\'', '"']).count() % 2 == 0;
            is_comment.then(|| (number, comment.trim().to_owned()))
        })
        .collect()
}

fn prose(content: &str) -> Vec<(usize, String)> {
    let mut passages = Vec::new();
    let mut in_code = false;
    let mut line = 1;
    let mut position = 0;
    for (event, range) in Parser::new_ext(content, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Text(text) if !in_code => {
                if range.start > position {
                    line += content[position..range.start].matches('\n').count();
                    position = range.start;
                }
                passages.push((line, text.into_string()));
            }
            _ => {}
        }
    }
    passages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(kind: Kind, content: &str) -> Vec<(usize, String)> {
        passages(kind, content)
    }

    #[test]
    fn comments_of_rust_are_read_and_strings_are_not() {
        let content = "let a = \"// no\"; // one\n/// two\n/* three */ fn f() {}\n";
        let expected = [(1, "one"), (2, "two"), (3, "three */")];
        assert_eq!(
            words(Kind::Rust, content),
            expected.map(|(n, t)| (n, t.to_owned()))
        );
    }

    #[test]
    fn comments_of_sql_are_read_and_strings_are_not() {
        let content = "SELECT '-- no';\nSELECT 1; -- yes\n";
        assert_eq!(words(Kind::Sql, content), [(2, "yes".to_owned())]);
    }

    #[test]
    fn prose_and_tables_of_markdown_are_read_and_code_is_not() {
        let content = "# Head\n\ntext `code`\n\n```sh\nnot this\n```\n\n| a |\n|---|\n| b |\n";
        let lines: Vec<_> = words(Kind::Markdown, content)
            .into_iter()
            .map(|(line, text)| (line, text.trim().to_owned()))
            .collect();
        let expected = [(1, "Head"), (3, "text"), (9, "a"), (11, "b")];
        assert_eq!(lines, expected.map(|(n, t)| (n, t.to_owned())));
    }

    #[test]
    fn tables_code_and_addresses_may_be_long() {
        let long = "x".repeat(MAX_COLUMNS + 1);
        let content = format!("| {long} |\n{long}\n```\n{long} {long}\n```\n{long} word\n");
        assert_eq!(long_lines(Kind::Markdown, &content), [(6, MAX_COLUMNS + 6)]);
    }
}
