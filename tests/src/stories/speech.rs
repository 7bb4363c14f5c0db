//! Names for what passes a line, so that a table of points can be read.

use std::collections::HashMap;

/// What is spoken on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tongue {
    /// The protocol of PostgreSQL, version 3.
    Postgres,
    /// Lines of text, as HTTP/1.1 and SMTP begin their requests.
    Lines,
}

/// Understands one connection.
pub(super) struct Ear {
    tongue: Tongue,
    /// The texts of prepared statements by their names.
    statements: HashMap<Vec<u8>, String>,
    has_greeted: bool,
}

impl Ear {
    pub fn new(tongue: Tongue) -> Self {
        Self {
            tongue,
            statements: HashMap::new(),
            has_greeted: false,
        }
    }

    /// A name for what the client says. Of a longer request this is the first piece.
    pub fn name(&mut self, bytes: &[u8]) -> String {
        match self.tongue {
            Tongue::Postgres => self.statement(bytes),
            Tongue::Lines => first_words(&String::from_utf8_lossy(bytes), 2),
        }
    }

    fn statement(&mut self, mut bytes: &[u8]) -> String {
        // The first message has no type; all others begin with a letter and their length.
        if !std::mem::replace(&mut self.has_greeted, true) {
            return "connect".to_owned();
        }
        let mut names = Vec::new();
        while let Some((kind, body, rest)) = message(bytes) {
            bytes = rest;
            let mut fields = body.split(|byte| *byte == 0);
            let name = match kind {
                b'P' => {
                    let statement = fields.next().unwrap_or_default().to_vec();
                    let name = shortened(&String::from_utf8_lossy(fields.next().unwrap_or_default()));
                    self.statements.insert(statement, name.clone());
                    format!("prepare {name}")
                }
                b'B' => {
                    let statement = fields.nth(1).unwrap_or_default();
                    self.statements.get(statement).cloned().unwrap_or_default()
                }
                b'Q' => shortened(&String::from_utf8_lossy(fields.next().unwrap_or_default())),
                b'C' => "close".to_owned(),
                b'X' => "goodbye".to_owned(),
                _ => continue,
            };
            names.push(name);
        }
        names.join(" + ")
    }
}

fn message(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let length = u32::from_be_bytes(*rest.first_chunk()?) as usize;
    let body = rest.get(4..length.min(rest.len()))?;
    Some((*kind, body, rest.get(length..).unwrap_or_default()))
}

/// The function of idem that a statement calls, or how it begins.
fn shortened(sql: &str) -> String {
    match sql
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .find(|word| word.starts_with("idem_"))
    {
        Some(function) => function.to_owned(),
        None => first_words(sql, 3),
    }
}

fn first_words(text: &str, count: usize) -> String {
    let words: Vec<_> = text.split_whitespace().take(count).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_named_after_their_function_or_their_first_words() {
        let mut ear = Ear::new(Tongue::Postgres);
        assert_eq!(ear.name(b"\0\0\0\x08\0\x03\0\0"), "connect");
        assert_eq!(ear.name(b"Q\0\0\0\x0aBEGIN\0"), "BEGIN");
        let prepare = b"P\0\0\0\x21s0\0SELECT idem_acquire($1)\0\0\0S\0\0\0\x04";
        assert_eq!(ear.name(prepare), "prepare idem_acquire");
        assert_eq!(ear.name(b"B\0\0\0\x08\0s0\0E\0\0\0\x04"), "idem_acquire");
        assert_eq!(Ear::new(Tongue::Lines).name(b"POST /charges HTTP/1.1\r\n"), "POST /charges");
    }
}
