//! Recognizes COMMIT in the text of a query.

/// Returns whether a statement of this query is COMMIT, in any of its forms (`END`, `COMMIT WORK`,
/// `COMMIT AND CHAIN`). COMMIT PREPARED is another statement.
pub(super) fn contains_commit(query: &[u8]) -> bool {
    let mut tokens = Tokens { rest: query };
    let mut statement = Statement::default();
    while let Some(token) = tokens.next() {
        match token {
            Token::Semicolon if statement.depth == 0 => {
                if statement.is_commit() {
                    return true;
                }
                statement = Statement::default();
            }
            Token::Word(word) => statement.add(word),
            Token::Semicolon | Token::Other => statement.add(b""),
        }
    }
    statement.is_commit()
}

/// The number of words that are needed to recognize a statement. The longest beginning is `CREATE
/// OR REPLACE FUNCTION`.
const DECISIVE: usize = 4;

/// The first words of a statement, in upper case.
#[derive(Default)]
struct Statement {
    words: Vec<Vec<u8>>,
    /// The number of open blocks in the body of a function: `BEGIN ATOMIC …; END`. Semicolons
    /// inside the body do not end the statement.
    depth: usize,
}

impl Statement {
    fn add(&mut self, word: &[u8]) {
        let word = word.to_ascii_uppercase();
        if self.is_routine() {
            match &*word {
                b"BEGIN" => self.depth += 1,
                b"CASE" if self.depth > 0 => self.depth += 1,
                b"END" => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        if self.words.len() < DECISIVE {
            self.words.push(word);
        }
    }

    fn is_commit(&self) -> bool {
        let is = |at: usize, word: &[u8]| self.words.get(at).is_some_and(|found| found == word);
        (is(0, b"COMMIT") && !is(1, b"PREPARED")) || is(0, b"END")
    }

    fn is_routine(&self) -> bool {
        let words: Vec<&[u8]> = self.words.iter().map(Vec::as_slice).collect();
        matches!(
            &*words,
            [b"CREATE", b"FUNCTION" | b"PROCEDURE", ..]
                | [b"CREATE", b"OR", b"REPLACE", b"FUNCTION" | b"PROCEDURE"]
        )
    }
}

enum Token<'q> {
    /// A keyword or an unquoted name.
    Word(&'q [u8]),
    Semicolon,
    /// A string, a quoted name, an operator or a part of a number.
    Other,
}

/// The tokens of a query, without white space and comments.
struct Tokens<'q> {
    rest: &'q [u8],
}

impl<'q> Tokens<'q> {
    fn next(&mut self) -> Option<Token<'q>> {
        self.skip_blanks();
        let first = *self.rest.first()?;
        if is_word_start(first) {
            let word = self.take_while(is_word_part);
            if word.eq_ignore_ascii_case(b"e") && self.rest.starts_with(b"'") {
                self.skip_string_with_escapes();
                return Some(Token::Other);
            }
            return Some(Token::Word(word));
        }
        match first {
            b'\'' | b'"' => self.skip_quoted(first),
            b'$' => self.skip_dollar_quoted(),
            _ => self.skip(1),
        }
        Some(match first {
            b';' => Token::Semicolon,
            _ => Token::Other,
        })
    }

    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|byte| byte.is_ascii_whitespace() || byte == b'\x0b');
            if self.rest.starts_with(b"--") {
                self.take_while(|byte| byte != b'\n');
            } else if self.rest.starts_with(b"/*") {
                self.skip_block_comment();
            } else {
                return;
            }
        }
    }

    /// Skips a comment `/* … */`. Such comments can be nested.
    fn skip_block_comment(&mut self) {
        let mut depth = 0_usize;
        while !self.rest.is_empty() {
            if self.rest.starts_with(b"/*") {
                depth += 1;
                self.skip(2);
            } else if self.rest.starts_with(b"*/") {
                depth -= 1;
                self.skip(2);
                if depth == 0 {
                    return;
                }
            } else {
                self.skip(1);
            }
        }
    }

    /// Skips a string or a quoted name. A doubled quote inside is read as the end of one string and
    /// the start of the next, which makes no difference here.
    fn skip_quoted(&mut self, quote: u8) {
        self.skip(1);
        self.take_while(|byte| byte != quote);
        self.skip(1);
    }

    /// Skips `'…'` after the letter E: a backslash escapes the next character.
    fn skip_string_with_escapes(&mut self) {
        self.skip(1);
        while let Some(&byte) = self.rest.first() {
            self.skip(if byte == b'\\' { 2 } else { 1 });
            if byte == b'\'' {
                return;
            }
        }
    }

    /// Skips `$tag$ … $tag$`, or the dollar sign of a parameter.
    fn skip_dollar_quoted(&mut self) {
        let inside = &self.rest[1..];
        let tag = inside
            .iter()
            .position(|&byte| !is_word_part(byte) || byte == b'$');
        let is_tag = |tag: &[u8]| tag.first().is_none_or(|&byte| is_word_start(byte));
        match tag {
            Some(end) if inside[end] == b'$' && is_tag(&inside[..end]) => {
                let delimiter = &self.rest[..end + 2];
                let body = &self.rest[delimiter.len()..];
                let closing = body
                    .windows(delimiter.len())
                    .position(|window| window == delimiter);
                self.rest = closing.map_or(&[], |at| &body[at + delimiter.len()..]);
            }
            _ => self.skip(1),
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn take_while(&mut self, fits: impl Fn(u8) -> bool) -> &'q [u8] {
        let end = self.rest.iter().position(|&byte| !fits(byte));
        let (taken, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || !byte.is_ascii()
}

fn is_word_part(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_commit_is_recognized() {
        for query in [
            "COMMIT",
            "commit;",
            " \n Commit Work ;",
            "COMMIT TRANSACTION AND NO CHAIN",
            "END",
            "end transaction",
            "SAVEPOINT idem; COMMIT",
            "SELECT 1; COMMIT;\n",
            "COMMIT; BEGIN",
            "/* COMMIT */ COMMIT",
            "/* a /* b */ c */ COMMIT",
            "-- a comment\nCOMMIT",
            "INSERT INTO t VALUES ('a;b'); COMMIT",
            "INSERT INTO t VALUES (E'it\\'s;'); COMMIT",
            "INSERT INTO t VALUES ('it''s;'); COMMIT",
            "INSERT INTO t VALUES ('back\\'); COMMIT",
            "DO $$BEGIN PERFORM 1; END$$; COMMIT",
            "DO $a$ $$; $$ $a$; COMMIT",
            "SELECT a$b$c; COMMIT",
            "SELECT $1; COMMIT",
            "SELECT \"a;b\"; COMMIT",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE 1 WHEN 1 THEN 2 END; END; \
             COMMIT",
        ] {
            assert!(contains_commit(query.as_bytes()), "{query}");
        }
    }

    #[test]
    fn other_statements_are_not_commits() {
        for query in [
            "",
            ";",
            "BEGIN",
            "ROLLBACK",
            "COMMITTED",
            "COMMIT PREPARED 'a'",
            "PREPARE TRANSACTION 'a'",
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            "SELECT 'a'; -- COMMIT",
            "SELECT '; COMMIT'",
            "SELECT '; COMMIT",
            "SELECT \"; COMMIT\"",
            "SELECT $$; COMMIT$$",
            "SELECT $a$; COMMIT; $$ $a$",
            "DO $$BEGIN COMMIT; END$$",
            "SELECT E'\\'; COMMIT'",
            "SELECT 1 /* ; COMMIT */",
            "SELECT CASE 1 WHEN 1 THEN 2 END",
            "(COMMIT)",
            "COMMENT ON TABLE commit IS 'COMMIT'",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END",
            "CREATE OR REPLACE PROCEDURE p() BEGIN ATOMIC SELECT CASE 1 WHEN 1 THEN 2 END; END",
        ] {
            assert!(!contains_commit(query.as_bytes()), "{query}");
        }
    }
}
