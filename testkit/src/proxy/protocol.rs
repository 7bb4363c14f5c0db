//! The messages of the PostgreSQL protocol, as far as the proxies have to understand them.

use std::io;

/// The kind that stands for the first message of a client, which has no type byte.
pub const CONNECT: u8 = 0;

/// The type byte of ReadyForQuery, which ends every response.
pub const READY: u8 = b'Z';

/// The bytes of the length of a message.
const LENGTH_BYTES: usize = size_of::<u32>();

/// The messages of one side of a connection, assembled from the bytes of several reads.
pub struct Messages {
    pending: Vec<u8>,
    has_kinds: bool,
}

impl Messages {
    /// The messages of a client.
    #[must_use]
    pub fn of_client() -> Self {
        Self {
            pending: Vec::new(),
            has_kinds: false,
        }
    }

    /// The messages of a server.
    #[must_use]
    pub fn of_server() -> Self {
        Self {
            has_kinds: true,
            ..Self::of_client()
        }
    }

    /// Adds bytes and returns the messages that are complete now.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.pending.extend_from_slice(bytes);
        let mut whole = Vec::new();
        while let Some(message) = self.next() {
            whole.push(message);
        }
        whole
    }

    fn next(&mut self) -> Option<Message> {
        let kind_bytes = usize::from(self.has_kinds);
        let length = self.pending.get(kind_bytes..)?.first_chunk()?;
        let end = kind_bytes + (u32::from_be_bytes(*length) as usize).max(LENGTH_BYTES);
        self.pending.get(..end)?;
        let kind = if self.has_kinds {
            self.pending[0]
        } else {
            CONNECT
        };
        self.has_kinds = true;
        let bytes = self.pending.drain(..end).collect();
        Some(Message { kind, bytes })
    }
}

/// A message of a client or of a server. `bytes` includes the type byte, if there is one, and the
/// length.
#[derive(Debug)]
pub struct Message {
    pub kind: u8,
    pub bytes: Vec<u8>,
}

impl Message {
    /// Returns the message of a simple query.
    pub(super) fn query(sql: &str) -> io::Result<Self> {
        let length = u32::try_from(LENGTH_BYTES + sql.len() + 1).map_err(io::Error::other)?;
        let bytes = [b"Q", &length.to_be_bytes()[..], sql.as_bytes(), b"\0"].concat();
        Ok(Self { kind: b'Q', bytes })
    }

    /// Returns the bytes after the type and the length.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.bytes.get(1 + LENGTH_BYTES..).unwrap_or_default()
    }

    /// Returns whether this is a simple query that ends with COMMIT, as all drivers and ORMs of
    /// these tests send it. idem adds a comment to it.
    pub(super) fn is_commit(&self) -> bool {
        let last = self.body().rsplit(|&byte| byte == b';').next();
        let commits = [b"COMMIT\0".as_slice(), b"COMMIT /* idem */\0"];
        self.kind == b'Q' && last.is_some_and(|sql| commits.contains(&sql.trim_ascii()))
    }

    /// Returns the message with spaces in place of the comment of idem in COMMIT.
    pub(super) fn without_mark(&self) -> Vec<u8> {
        const MARK: &[u8] = b"/* idem */";
        let mut bytes = self.bytes.clone();
        let found = bytes.windows(MARK.len()).position(|part| part == MARK);
        if let Some(start) = found.filter(|_| self.is_commit()) {
            bytes[start..start + MARK.len()].fill(b' ');
        }
        bytes
    }

    /// Returns whether the server reports that a transaction has committed.
    pub(super) fn is_committed(&self) -> bool {
        self.kind == b'C' && self.body() == b"COMMIT\0"
    }

    /// Returns whether this reply means that the server does not commit: an error, or the end of a
    /// ROLLBACK.
    pub(super) fn is_rolled_back(&self) -> bool {
        self.kind == b'E' || (self.kind == b'C' && self.body() == b"ROLLBACK\0")
    }

    /// Returns whether this is a simple query with this text.
    pub(super) fn is_query(&self, sql: &str) -> bool {
        self.kind == b'Q' && self.body().strip_suffix(b"\0") == Some(sql.as_bytes())
    }
}
