//! The kind of an error: whether a retry can succeed.

use std::{error::Error as _, io};

use tokio_postgres::error::{DbError, Severity, SqlState};

/// The kind of an [`Error`](super::Error), which decides how to handle it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or a payload is invalid, or larger than a limit (54000). Every attempt at the
    /// same message fails with this error, unless an administrator changes the limit.
    Invalid,
    /// The transaction lost a conflict with another transaction (40001, 40P01, 55P03), or its
    /// COMMIT lost its comment. Run the transaction again.
    Conflict,
    /// The connection or the server was lost before COMMIT was sent. Nothing took effect.
    ConnectionLost,
    /// The connection or the server was lost during COMMIT. Do not acknowledge the message.
    AmbiguousCommit,
    /// The transaction is read-only, or the server is a standby (25006). Connect to the primary.
    ReadOnly,
    /// A claim, lease, batch or external call is not held (55000): this transaction has no claim
    /// for the effects, the token of a lease or of a relay's batch is stale, or the external call
    /// was never begun. A relay also gets this error if the transaction ids of the database went
    /// backwards.
    NotClaimed,
    /// No relay or role has this name (42704).
    NotFound,
    /// The role lacks a privilege that `idem_grant` gives (42501).
    NotGranted,
    /// The functions are not on the search_path, the extension is not installed (42883, 3F000), or
    /// it is older than the client (`Error::NotReady`).
    NotInstalled,
    /// The message has no id, and its policy requires one.
    MissingId,
    /// The handler failed. Another attempt may succeed.
    Handler,
    /// The handler failed with a terminal error, has ended its transaction, or has not restored the
    /// role or the search_path. No attempt can succeed.
    Terminal,
    /// The pool or the server (53300) had no free connection. Nothing took effect.
    PoolExhausted,
    /// Any other error.
    Other,
}

impl ErrorKind {
    /// Returns the kind of a driver error, for example of a business statement in the same
    /// transaction.
    pub fn of(error: &tokio_postgres::Error) -> Self {
        if is_connection_loss(error) {
            return Self::ConnectionLost;
        }
        error.code().map_or(Self::Other, kind_of)
    }

    /// Returns the kind of a server error that is not inside a driver error.
    pub fn of_server(answer: &DbError) -> Self {
        kind_of_server(answer.code(), is_fatal(answer))
    }

    /// Returns the name of this kind for logs and labels of metrics, such as `connection_lost`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::ConnectionLost => "connection_lost",
            Self::AmbiguousCommit => "ambiguous_commit",
            Self::ReadOnly => "read_only",
            Self::NotClaimed => "not_claimed",
            Self::NotGranted => "not_granted",
            Self::NotInstalled => "not_installed",
            Self::NotFound => "not_found",
            Self::MissingId => "missing_id",
            Self::Handler => "handler",
            Self::Terminal => "terminal",
            Self::PoolExhausted => "pool_exhausted",
            Self::Other => "other",
        }
    }

    /// Returns whether running the whole transaction again can succeed: see
    /// [`Error::is_retryable`](super::Error::is_retryable).
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::ConnectionLost | Self::AmbiguousCommit | Self::PoolExhausted
        )
    }
}

/// Returns the kind of an error that the server has returned.
pub(super) fn kind_of_server(state: &SqlState, is_fatal: bool) -> ErrorKind {
    match ends_session(state, is_fatal) {
        true => ErrorKind::ConnectionLost,
        false => kind_of(state),
    }
}

fn kind_of(state: &SqlState) -> ErrorKind {
    match state.code() {
        "40001" | "40P01" | "55P03" => ErrorKind::Conflict,
        // 22021 and 22P05 mean a zero byte in a text or in JSON, which the server cannot store.
        // 54000 means a value above a limit of the server, such as `idem.max_payload`.
        "22004" | "22023" | "22021" | "22P05" | "54000" => ErrorKind::Invalid,
        "25006" => ErrorKind::ReadOnly,
        "55000" => ErrorKind::NotClaimed,
        "42704" => ErrorKind::NotFound,
        "42501" => ErrorKind::NotGranted,
        "42883" | "3F000" => ErrorKind::NotInstalled,
        "53300" => ErrorKind::PoolExhausted,
        _ => ErrorKind::Other,
    }
}

fn is_connection_loss(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(answer) => ends_session(answer.code(), is_fatal(answer)),
        None => {
            error.is_closed()
                || error
                    .source()
                    .and_then(|source| source.downcast_ref())
                    .is_some_and(is_connection_error)
        }
    }
}

/// Returns whether the connection caused the I/O error. `InvalidInput` has another cause: the
/// statement contains a zero byte or is too long for the protocol, so it was not sent, and every
/// retry would fail too.
fn is_connection_error(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::InvalidInput
}

fn ends_session(state: &SqlState, is_fatal: bool) -> bool {
    is_fatal
        && matches!(
            state.code(),
            // 25P03 and 57P05 are the time limits of the server for idle sessions.
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03"
        )
        || state.code().starts_with("08")
}

/// Returns whether the error ends the connection, as FATAL and PANIC do. After such an error the
/// server reports nothing more about the transaction. During COMMIT the error can follow a commit
/// that took effect, for example if the wait for a standby was terminated.
pub(super) fn is_fatal(answer: &DbError) -> bool {
    matches!(
        answer.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstate_decides_the_kind_of_an_error() {
        for (state, kind) in [
            ("40001", ErrorKind::Conflict),
            ("40P01", ErrorKind::Conflict),
            ("55P03", ErrorKind::Conflict),
            ("22023", ErrorKind::Invalid),
            ("22021", ErrorKind::Invalid),
            ("22P05", ErrorKind::Invalid),
            ("54000", ErrorKind::Invalid),
            ("25006", ErrorKind::ReadOnly),
            ("55000", ErrorKind::NotClaimed),
            ("42704", ErrorKind::NotFound),
            ("42501", ErrorKind::NotGranted),
            ("42883", ErrorKind::NotInstalled),
            ("53300", ErrorKind::PoolExhausted),
            ("23505", ErrorKind::Other),
        ] {
            assert_eq!(kind_of(&SqlState::from_code(state)), kind, "{state}");
        }
        assert!(!ErrorKind::Invalid.is_retryable());
    }
}
