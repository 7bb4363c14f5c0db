//! The messages of the PostgreSQL protocol, as far as the proxy has to understand them.

use std::{collections::HashSet, io};

use super::commit::contains_commit;

/// The bytes of a message in front of its body: its type and its length.
const HEADER_BYTES: usize = 5;

/// A message of a client or of a server, after the start of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'m> {
    kind: u8,
    body: &'m [u8],
}

impl<'m> Message<'m> {
    /// Reads the first message. Returns it with its total length in bytes, or `None` if the message
    /// is not complete.
    pub(super) fn first(bytes: &'m [u8]) -> io::Result<Option<(Self, usize)>> {
        let Some((&[kind, a, b, c, d], _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        // The length contains itself, but not the type.
        let total = usize::try_from(u32::from_be_bytes([a, b, c, d]))
            .ok()
            .and_then(|length| length.checked_add(1))
            .filter(|&total| total >= HEADER_BYTES)
            .ok_or_else(|| io::Error::other("not a message of the PostgreSQL protocol"))?;
        Ok(bytes
            .get(HEADER_BYTES..total)
            .map(|body| (Self { kind, body }, total)))
    }

    /// Returns whether the server reports that a transaction has committed.
    pub(super) fn is_committed(self) -> bool {
        self.kind == b'C' && self.body == b"COMMIT\0"
    }

    /// Returns whether this reply means that the server does not commit: an error, or the end of a
    /// ROLLBACK.
    pub(super) fn is_rolled_back(self) -> bool {
        self.kind == b'E' || (self.kind == b'C' && self.body == b"ROLLBACK\0")
    }

    /// Returns whether this is a simple query with this text.
    pub(super) fn is_query(self, sql: &str) -> bool {
        self.kind == b'Q' && string(self.body).0 == sql.as_bytes()
    }
}

/// Returns the message of a simple query.
pub(super) fn simple_query(sql: &str) -> io::Result<Vec<u8>> {
    let length = u32::try_from(size_of::<u32>() + sql.len() + 1).map_err(io::Error::other)?;
    let mut message = vec![b'Q'];
    message.extend(length.to_be_bytes());
    message.extend(sql.as_bytes());
    message.push(0);
    Ok(message)
}

/// What a client has prepared on its connection: the names of the statements and portals that are a
/// COMMIT.
#[derive(Default)]
pub(super) struct Prepared {
    statements: HashSet<Vec<u8>>,
    portals: HashSet<Vec<u8>>,
}

impl Prepared {
    /// Notes a message of the client. Returns whether the server commits a transaction when it
    /// executes this message.
    pub(super) fn commits(&mut self, message: Message<'_>) -> bool {
        let Message { kind, body } = message;
        match kind {
            b'Q' => return contains_commit(string(body).0),
            // Parse
            b'P' => {
                let (statement, rest) = string(body);
                note(
                    &mut self.statements,
                    statement,
                    contains_commit(string(rest).0),
                );
            }
            // Bind
            b'B' => {
                let (portal, rest) = string(body);
                let is_commit = self.statements.contains(string(rest).0);
                note(&mut self.portals, portal, is_commit);
            }
            // Execute
            b'E' => return self.portals.contains(string(body).0),
            // Close
            b'C' => match body.split_first() {
                Some((b'S', name)) => note(&mut self.statements, string(name).0, false),
                Some((b'P', name)) => note(&mut self.portals, string(name).0, false),
                _ => {}
            },
            _ => {}
        }
        false
    }
}

fn note(commits: &mut HashSet<Vec<u8>>, name: &[u8], is_commit: bool) {
    if is_commit {
        commits.insert(name.to_owned());
    } else {
        commits.remove(name);
    }
}

/// Splits a body after its first string, which ends with a zero byte.
fn string(body: &[u8]) -> (&[u8], &[u8]) {
    let end = body.iter().position(|&byte| byte == 0);
    let (string, rest) = body.split_at(end.unwrap_or(body.len()));
    (string, rest.get(1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits(prepared: &mut Prepared, kind: u8, body: &[u8]) -> bool {
        prepared.commits(Message { kind, body })
    }

    #[test]
    fn message_is_read_when_it_is_complete() {
        let bytes = [simple_query("COMMIT").unwrap(), simple_query("x").unwrap()].concat();
        for end in 0..12 {
            assert_eq!(Message::first(&bytes[..end]).unwrap(), None, "{end} bytes");
        }
        let (message, length) = Message::first(&bytes).unwrap().unwrap();
        assert!(message.is_query("COMMIT") && !message.is_query("x"));
        assert_eq!(length, 12);
        let (next, _) = Message::first(&bytes[length..]).unwrap().unwrap();
        assert!(next.is_query("x"));
        assert!(Message::first(b"Q\0\0\0\x03").is_err());
    }

    #[test]
    fn execution_of_a_prepared_commit_is_a_commit() {
        let mut prepared = Prepared::default();
        assert!(!commits(&mut prepared, b'P', b"s1\0COMMIT\0\0\0"));
        assert!(!commits(&mut prepared, b'P', b"\0SELECT 1\0\0\0"));
        assert!(!commits(&mut prepared, b'B', b"\0\0\0\0\0\0\0\0"));
        assert!(!commits(&mut prepared, b'E', b"\0\0\0\0\0"));
        assert!(!commits(&mut prepared, b'B', b"p\0s1\0\0\0\0\0\0\0"));
        assert!(!commits(&mut prepared, b'E', b"\0\0\0\0\0"));
        assert!(commits(&mut prepared, b'E', b"p\0\0\0\0\0"));
        assert!(!commits(&mut prepared, b'C', b"Pp\0"));
        assert!(!commits(&mut prepared, b'E', b"p\0\0\0\0\0"));
        // The prepared statement still exists. A new portal executes it.
        assert!(!commits(&mut prepared, b'B', b"\0s1\0\0\0\0\0\0\0"));
        assert!(commits(&mut prepared, b'E', b"\0\0\0\0\0"));
        assert!(!commits(&mut prepared, b'C', b"Ss1\0"));
        assert!(!commits(&mut prepared, b'B', b"\0s1\0\0\0\0\0\0\0"));
        assert!(!commits(&mut prepared, b'E', b"\0\0\0\0\0"));
    }

    #[test]
    fn unnamed_statement_is_replaced_by_the_next() {
        let mut prepared = Prepared::default();
        commits(&mut prepared, b'P', b"\0COMMIT\0\0\0");
        commits(&mut prepared, b'B', b"\0\0\0\0\0\0\0\0");
        assert!(commits(&mut prepared, b'E', b"\0\0\0\0\0"));
        commits(&mut prepared, b'P', b"\0SELECT 'COMMIT'\0\0\0");
        commits(&mut prepared, b'B', b"\0\0\0\0\0\0\0\0");
        assert!(!commits(&mut prepared, b'E', b"\0\0\0\0\0"));
    }

    #[test]
    fn only_the_tag_of_commit_reports_a_commit() {
        let reply = |kind, body| Message { kind, body };
        assert!(reply(b'C', b"COMMIT\0").is_committed());
        assert!(!reply(b'C', b"ROLLBACK\0").is_committed());
        assert!(!reply(b'C', b"COMMIT PREPARED\0").is_committed());
        assert!(!reply(b'D', b"COMMIT\0").is_committed());
    }
}
