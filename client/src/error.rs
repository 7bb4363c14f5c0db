//! Errors, and whether a retry can succeed.

#[cfg(feature = "runtime")]
use std::time::Duration;
use std::{error::Error as _, fmt, io, sync::Arc};

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::redacted::{quoted_without_value, without_value};
#[cfg(feature = "runtime")]
use crate::{HandlerError, NotReady, SourceEnded, handler::Mark};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid. The server would reject it with 22023. Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The payload cannot be encoded as JSON. Nothing was sent.
    #[error("the payload cannot be written as JSON: {}", without_value(.0))]
    Encode(#[source] serde_json::Error),
    /// The server returned an error, or the connection failed. See [`Error::sqlstate`] and
    /// [`Error::kind`].
    #[error("{}", describe(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The connection was lost during COMMIT. The transaction may or may not have committed.
    ///
    /// **Do not acknowledge the message.** Let it be redelivered: the next claim then returns
    /// whether the transaction committed.
    #[error("the connection was lost during COMMIT: the transaction may or may not have committed")]
    AmbiguousCommit(#[source] Arc<tokio_postgres::Error>),
    /// The payload is not JSON of the requested type. Every attempt at the same message fails with
    /// this error.
    #[error("the payload is not the JSON that was expected: {0}")]
    Decode(#[source] DecodeError),
    /// The message has no id, and the policy of its destination rejects such messages.
    #[error(
        "a message for {destination} has no id: {strategy} is missing \
         (choose another id strategy for this destination, or set missing-id to unprotected)"
    )]
    MissingId {
        /// The destination.
        destination: String,
        /// The id strategy of the destination.
        strategy: String,
    },
    /// The handler failed, and everything was rolled back.
    #[cfg(feature = "runtime")]
    #[error("the handler failed: {0}")]
    Handler(HandlerError),
    /// The handler failed under a lease. The database has counted the attempt and scheduled the
    /// next one.
    #[cfg(feature = "runtime")]
    #[error("the attempt failed, and the next one is due in {retry_after:?}: {error}")]
    Attempt {
        /// The error of the handler.
        error: HandlerError,
        /// The time until the next attempt.
        retry_after: Duration,
    },
    /// The lease expired or was taken over during the work. The message was not completed, and
    /// another process may be working on it.
    #[error("the lease of the message is lost")]
    LeaseLost,
    /// The source of a consumer ended before a shutdown was requested.
    #[cfg(feature = "runtime")]
    #[error(transparent)]
    SourceEnded(Box<SourceEnded>),
    /// A task of a consumer or relay panicked before a shutdown was requested. The other tasks have
    /// finished their work and stopped.
    #[cfg(feature = "runtime")]
    #[error("a worker panicked: {0}")]
    WorkerPanicked(String),
    /// The handler kept its [`Tx`](crate::Tx) after it returned. The connection was closed, which
    /// rolls back.
    #[cfg(feature = "runtime")]
    #[error("the handler has kept its transaction: drop it before the handler ends")]
    TransactionKept,
    /// The pool provided no connection in time, or the pool is closed.
    #[cfg(feature = "runtime")]
    #[error("no connection from the pool: {0}")]
    Pool(String),
    /// The database lacks something that a consumer or a relay needs: see
    /// [`consumer_preflight`](crate::consumer_preflight) and
    /// [`relay_preflight`](crate::relay_preflight).
    #[cfg(feature = "runtime")]
    #[error(transparent)]
    NotReady(Box<NotReady>),
    /// The server returned a result that this version of the client does not support.
    #[error("unexpected response of the server: {0}")]
    Unexpected(String),
}

/// The reason why a payload cannot be decoded.
///
/// Its text and its causes contain no part of the payload.
#[derive(Debug)]
pub struct DecodeError(serde_json::Error);

impl DecodeError {
    /// Returns the error of the parser. Its text can contain a value of the payload.
    pub fn of_parser(&self) -> &serde_json::Error {
        &self.0
    }
}

impl From<serde_json::Error> for DecodeError {
    fn from(error: serde_json::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_value(&self.0))
    }
}

impl std::error::Error for DecodeError {}

/// The kind of an [`Error`], which decides how to handle it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or a payload is invalid. Every attempt at the same message fails with this
    /// error.
    Invalid,
    /// The transaction lost a conflict with another transaction (40001, 40P01, 55P03). Run the
    /// transaction again.
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
    /// The handler failed with a terminal error. No attempt can succeed.
    Terminal,
    /// The pool or the server (53300) had no free connection. Nothing took effect.
    PoolExhausted,
    /// Any other error.
    Other,
}

impl Error {
    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Encode(_) | Self::Decode(_) => ErrorKind::Invalid,
            Self::MissingId { .. } => ErrorKind::MissingId,
            #[cfg(feature = "runtime")]
            Self::Handler(error) if error.is_terminal() => ErrorKind::Terminal,
            #[cfg(feature = "runtime")]
            Self::Handler(error) | Self::Attempt { error, .. } => error
                .database_kind()
                .filter(|kind| kind.is_retryable())
                .unwrap_or(ErrorKind::Handler),
            #[cfg(feature = "runtime")]
            Self::Pool(_) => ErrorKind::PoolExhausted,
            #[cfg(feature = "runtime")]
            Self::TransactionKept => ErrorKind::Terminal,
            Self::AmbiguousCommit(_) => ErrorKind::AmbiguousCommit,
            Self::LeaseLost => ErrorKind::NotClaimed,
            #[cfg(feature = "runtime")]
            Self::SourceEnded(_) | Self::WorkerPanicked(_) => ErrorKind::Other,
            #[cfg(feature = "runtime")]
            Self::NotReady(lacks) => lacks.kind(),
            Self::Unexpected(_) => ErrorKind::Other,
            Self::Database(error) => ErrorKind::of(error),
        }
    }

    /// Returns whether running the whole transaction again, including its claim, can succeed.
    ///
    /// Returns true also after an ambiguous commit: if that commit took effect, the claim of the
    /// next run returns a duplicate.
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// Returns the SQLSTATE, if this error has one.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) => error.code(),
            Self::AmbiguousCommit(error) => error.code(),
            #[cfg(feature = "runtime")]
            Self::NotReady(lacks) => Some(lacks.sqlstate()),
            _ => None,
        }
    }

    /// Classifies the error of a COMMIT.
    ///
    /// If the server returns an ERROR, the transaction is certainly rolled back. After any other
    /// failure the result is unknown, so this function returns [`Error::AmbiguousCommit`].
    ///
    /// Use this for a transaction type with its own `commit`, such as the transaction of a pool:
    /// `tx.commit().await.map_err(Error::of_commit)`.
    pub fn of_commit(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(answer) if !is_last_word(answer) => Self::Database(error),
            _ => Self::AmbiguousCommit(Arc::new(error)),
        }
    }
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
    #[cfg(feature = "runtime")]
    pub(crate) fn of_server(answer: &DbError) -> Self {
        match is_goodbye(answer) {
            true => Self::ConnectionLost,
            false => kind_of(answer.code()),
        }
    }

    /// Returns whether running the whole transaction again can succeed: see
    /// [`Error::is_retryable`].
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::ConnectionLost | Self::AmbiguousCommit | Self::PoolExhausted
        )
    }
}

#[cfg(feature = "runtime")]
impl From<deadpool_postgres::PoolError> for Error {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            // A failure before the server replies, in TLS or in the path of a socket, is a failure
            // of the pool and not of the caller.
            deadpool_postgres::PoolError::Backend(error)
                if error.as_db_error().is_none() && ErrorKind::of(&error) == ErrorKind::Other =>
            {
                Self::Pool(describe(&error))
            }
            deadpool_postgres::PoolError::Backend(error) => Self::Database(error),
            other => Self::Pool(other.to_string()),
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

fn kind_of(state: &SqlState) -> ErrorKind {
    match state.code() {
        "40001" | "40P01" | "55P03" => ErrorKind::Conflict,
        // 22021 and 22P05 mean a zero byte in a text or in JSON, which the server cannot store.
        "22004" | "22023" | "22021" | "22P05" => ErrorKind::Invalid,
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
        Some(answer) => is_goodbye(answer),
        None => {
            error.is_closed()
                || error
                    .source()
                    .and_then(|source| source.downcast_ref())
                    .is_some_and(is_of_the_line)
        }
    }
}

/// Returns whether the connection caused the I/O error. `InvalidInput` has another cause: the
/// statement contains a zero byte or is too long for the protocol, so it was not sent, and every
/// retry would fail too.
fn is_of_the_line(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::InvalidInput
}

fn is_goodbye(answer: &DbError) -> bool {
    is_last_word(answer)
        && matches!(
            answer.code().code(),
            // 25P03 and 57P05 are the time limits of the server for idle sessions.
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03"
        )
        || answer.code().code().starts_with("08")
}

/// Returns whether the error ends the connection, as FATAL and PANIC do. After such an error the
/// server reports nothing more about the transaction. During COMMIT the error can follow a commit
/// that took effect, for example if the wait for a standby was terminated.
fn is_last_word(answer: &DbError) -> bool {
    matches!(
        answer.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    )
}

/// Describes a driver error with its cause. The text of the error itself is only "db error", or
/// omits why a connection failed.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => describe_server(server),
        None => causes(error),
    }
}

/// Returns the message and the hint of the server, without the detail, which can contain a row.
fn describe_server(error: &DbError) -> String {
    let hint = error
        .hint()
        .map(|hint| format!(" ({hint})"))
        .unwrap_or_default();
    format!("{}: {}{hint}", error.code().code(), error.message())
}

/// Describes an error of PostgreSQL or of serde, including its causes. The text of such an error
/// itself contains too little information, or a value of the payload. Returns `None` for all other
/// errors.
fn describe_known(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let driver = error.downcast_ref::<tokio_postgres::Error>();
    let shared = error
        .downcast_ref::<Arc<tokio_postgres::Error>>()
        .map(|shared| &**shared);
    let server = driver
        .or(shared)
        .and_then(tokio_postgres::Error::as_db_error)
        .or_else(|| error.downcast_ref());
    server.map(describe_server).or_else(|| {
        error
            .downcast_ref::<serde_json::Error>()
            .map(|error| without_value(error))
    })
}

/// Returns the text of an error, without a value of the payload that it quotes. Every text is
/// searched for such a value, because `anyhow` and `io::Error` hide a parser error inside them, and
/// other errors quote the text of a parser error.
fn shown(error: &(dyn std::error::Error + 'static)) -> String {
    let text = error.to_string();
    quoted_without_value(&text).unwrap_or(text)
}

/// Returns an error and all its causes in one line. A cause is left out if the text before it
/// already contains it.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        #[cfg(feature = "runtime")]
        if error.is::<Mark>() {
            cause = error.source();
            continue;
        }
        let known = describe_known(error);
        cause = error.source().filter(|_| known.is_none());
        let next = known.unwrap_or_else(|| shown(error));
        if text.is_empty() {
            text = next;
        } else if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot resolve: {0}")]
    struct Inner(#[source] io::Error);

    #[test]
    fn each_cause_is_shown_once() {
        let error = Outer(Inner(io::Error::other("no such host")));
        assert_eq!(
            causes(&error),
            "cannot connect: cannot resolve: no such host"
        );
    }

    #[test]
    fn sqlstate_decides_the_kind_of_an_error() {
        for (state, kind) in [
            ("40001", ErrorKind::Conflict),
            ("40P01", ErrorKind::Conflict),
            ("55P03", ErrorKind::Conflict),
            ("22023", ErrorKind::Invalid),
            ("22021", ErrorKind::Invalid),
            ("22P05", ErrorKind::Invalid),
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
        assert!(!Error::Invalid(String::new()).is_retryable());
    }

    #[cfg(feature = "runtime")]
    #[test]
    fn causes_of_a_decode_error_show_no_value() {
        let error = serde_json::from_str::<u64>("\"4111\"").unwrap_err();
        let text = causes(&Error::Decode(error.into()));
        assert!(
            text.contains("invalid type, expected u64 at line 1") && !text.contains("4111"),
            "{text}"
        );
    }
}
