//! The messages of the PostgreSQL protocol, as far as the proxy has to understand them.

use std::io;

/// The bytes of a message in front of its body: its type and its length.
const HEADER_BYTES: usize = 5;

/// A message of a client or of a server, after the start of the connection.
#[derive(Clone, Copy)]
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

    /// Returns whether this is a simple query that ends with COMMIT, as all drivers and ORMs of
    /// these tests send it.
    pub(super) fn is_commit(self) -> bool {
        let last = self.body.rsplit(|&byte| byte == b';').next();
        self.kind == b'Q' && last.is_some_and(|sql| sql.trim_ascii() == b"COMMIT\0")
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
        self.kind == b'Q' && self.body.strip_suffix(b"\0") == Some(sql.as_bytes())
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
