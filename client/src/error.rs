//! What can go wrong, and whether it makes sense to try again.

#[cfg(feature = "runtime")]
use std::time::Duration;
use std::{error::Error as _, fmt, io, sync::Arc};

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::redacted::{quoted_without_value, without_value};
#[cfg(feature = "runtime")]
use crate::{HandlerError, NotReady, SourceEnded, handler::Mark};

/// Everything that a call can answer besides its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The argument breaks a rule that the server would refuse too (22023). Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The payload has no JSON form. Nothing was sent.
    #[error("the payload cannot be written as JSON: {}", without_value(.0))]
    Encode(#[source] serde_json::Error),
    /// The server or the connection said no; [`Error::sqlstate`] and [`Error::kind`] say how.
    #[error("{}", describe(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The connection was lost while COMMIT was under way: the transaction may or may not have
    /// committed.
    ///
    /// **Do not acknowledge the message.** Let it be delivered again: the claim then says which it
    /// was.
    #[error("the connection was lost during COMMIT, which may have taken effect or not")]
    AmbiguousCommit(#[source] Arc<tokio_postgres::Error>),
    /// The payload is not the JSON that was asked for: the same message will fail again.
    #[error("the payload is not the JSON that was expected: {0}")]
    Decode(#[source] DecodeError),
    /// The message has nothing that it could be known by, and its policy is to refuse such
    /// messages.
    #[error(
        "a message for {destination} has no id: its id is {strategy}, which is not there \
         (choose another id strategy for this destination, or let it be processed unprotected)"
    )]
    MissingId {
        /// The destination whose policy it is.
        destination: String,
        /// Where the id should have come from.
        strategy: String,
    },
    /// The handler failed, and everything was rolled back.
    #[cfg(feature = "runtime")]
    #[error("the handler failed: {0}")]
    Handler(HandlerError),
    /// The handler failed under a lease. The database has counted the attempt, and says when the
    /// next one is due.
    #[cfg(feature = "runtime")]
    #[error("the attempt failed, and the next one is due in {retry_after:?}: {error}")]
    Attempt {
        /// Why.
        error: HandlerError,
        /// How long the message rests.
        retry_after: Duration,
    },
    /// The lease ran out or was taken over while the work went on: nothing was completed, and
    /// somebody else may be at it.
    #[error("the lease of the message is lost")]
    LeaseLost,
    /// The source of a consumer ended, and no shutdown was requested.
    #[cfg(feature = "runtime")]
    #[error(transparent)]
    SourceEnded(Box<SourceEnded>),
    /// A task of a consumer or relay panicked, and no shutdown was requested: the others have
    /// finished and stopped.
    #[cfg(feature = "runtime")]
    #[error("a worker panicked: {0}")]
    WorkerPanicked(String),
    /// The handler kept its [`Tx`](crate::Tx) beyond its end. The connection was closed, which
    /// rolls back.
    #[cfg(feature = "runtime")]
    #[error("the handler has kept its transaction: drop it before the handler ends")]
    TransactionKept,
    /// The pool gave no connection in time, or is closed.
    #[cfg(feature = "runtime")]
    #[error("no connection from the pool: {0}")]
    Pool(String),
    /// The database lacks something that a consumer or a relay needs: see
    /// [`consumer_preflight`](crate::consumer_preflight) and
    /// [`relay_preflight`](crate::relay_preflight).
    #[cfg(feature = "runtime")]
    #[error(transparent)]
    NotReady(Box<NotReady>),
    /// The server answered something that this version does not know.
    #[error("unexpected answer of the server: {0}")]
    Unexpected(String),
}

/// Why a payload cannot be read. Its text and its causes show no part of the payload.
#[derive(Debug)]
pub struct DecodeError(serde_json::Error);

impl DecodeError {
    /// The error of the parser. Its text can show a value of the payload.
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

/// The kind of an [`Error`]: what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A wrong argument or payload: the same message will fail again.
    Invalid,
    /// The transaction lost against another one (40001, 40P01, 55P03): run it again.
    Conflict,
    /// The connection or the server went away before COMMIT was sent: nothing took effect.
    ConnectionLost,
    /// It went away during COMMIT: do not acknowledge.
    AmbiguousCommit,
    /// A read-only transaction or a standby (25006): connect to the primary.
    ReadOnly,
    /// It is not held (55000): effects without a claim in this transaction, a lease or a batch of a
    /// relay whose token is stale, or a call that was never begun. Also what a relay is told whose
    /// transaction ids went backwards.
    NotClaimed,
    /// There is no relay, or no role, of this name (42704).
    NotFound,
    /// The role lacks `idem_grant` (42501).
    NotGranted,
    /// The functions are not on the search_path, or the extension is not installed (42883, 3F000),
    /// or it is older than the client (`Error::NotReady`).
    NotInstalled,
    /// The message has no id, and must have one.
    MissingId,
    /// The handler failed; another attempt may succeed.
    Handler,
    /// The handler failed and said that no attempt can succeed.
    Terminal,
    /// The pool or the server (53300) had no connection to give: nothing took effect.
    PoolExhausted,
    /// Anything else.
    Other,
}

impl Error {
    /// The kind of this error.
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

    /// Whether running the whole transaction again, from its claim on, can succeed.
    ///
    /// True also after an ambiguous commit: should it have taken effect, the claim answers
    /// "duplicate".
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// The SQLSTATE, when the server gave one.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) => error.code(),
            Self::AmbiguousCommit(error) => error.code(),
            #[cfg(feature = "runtime")]
            Self::NotReady(lacks) => Some(lacks.sqlstate()),
            _ => None,
        }
    }

    /// What the failure of a COMMIT means: an ERROR is a certain rollback, anything less leaves it
    /// open.
    ///
    /// For transactions that commit themselves, such as a pool's:
    /// `tx.commit().await.map_err(Error::of_commit)`.
    pub fn of_commit(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(answer) if !is_last_word(answer) => Self::Database(error),
            _ => Self::AmbiguousCommit(Arc::new(error)),
        }
    }
}

impl ErrorKind {
    /// The kind of an error of the driver, such as a business statement of the same transaction
    /// gives.
    pub fn of(error: &tokio_postgres::Error) -> Self {
        if is_connection_loss(error) {
            return Self::ConnectionLost;
        }
        error.code().map_or(Self::Other, kind_of)
    }

    /// The kind of an answer of the server that came without the error of the driver around it.
    #[cfg(feature = "runtime")]
    pub(crate) fn of_server(answer: &DbError) -> Self {
        match is_goodbye(answer) {
            true => Self::ConnectionLost,
            false => kind_of(answer.code()),
        }
    }

    /// Whether running the whole transaction again can succeed: see [`Error::is_retryable`].
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
            // What fails before a server answers, TLS or a socket's path, is no fault of whoever
            // wants the connection.
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
        // The last two are a zero byte in a text and in JSON, neither of which the server can keep.
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

/// Other than a statement that no message can carry, for a zero byte in it or its length: that one
/// never left, and never will.
fn is_of_the_line(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::InvalidInput
}

fn is_goodbye(answer: &DbError) -> bool {
    is_last_word(answer)
        && matches!(
            answer.code().code(),
            // 25P03 and 57P05 are the server's own time limits for idle sessions.
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03"
        )
        || answer.code().code().starts_with("08")
}

/// A FATAL or PANIC ends the connection: after it the server says nothing about the transaction any
/// more. One that arrives during COMMIT can follow a commit that has taken effect (a wait for a
/// standby that was terminated).
fn is_last_word(answer: &DbError) -> bool {
    matches!(
        answer.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    )
}

/// The driver's own text is "db error", or hides why a connection failed.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => describe_server(server),
        None => causes(error),
    }
}

/// The server's message and hint. The detail may show a row.
fn describe_server(error: &DbError) -> String {
    let hint = error
        .hint()
        .map(|hint| format!(" ({hint})"))
        .unwrap_or_default();
    format!("{}: {}{hint}", error.code().code(), error.message())
}

/// Errors whose own text says too little or too much. Their causes are in the description.
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

/// The text of one error. `anyhow` and `io::Error` hide the error of a parser that they hold, and
/// others quote it, so the value is searched for in every text.
fn shown(error: &(dyn std::error::Error + 'static)) -> String {
    let text = error.to_string();
    quoted_without_value(&text).unwrap_or(text)
}

/// An error and all its causes in one line. A cause that its effect quotes already is not repeated.
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
    fn causes_are_all_there_and_none_twice() {
        let error = Outer(Inner(io::Error::other("no such host")));
        assert_eq!(
            causes(&error),
            "cannot connect: cannot resolve: no such host"
        );
    }

    #[test]
    fn a_lost_conflict_is_retryable_and_a_wrong_argument_is_not() {
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
    fn causes_of_a_wrong_payload_show_no_value() {
        let error = serde_json::from_str::<u64>("\"4111\"").unwrap_err();
        let text = causes(&Error::Decode(error.into()));
        assert!(
            text.contains("invalid type, expected u64 at line 1") && !text.contains("4111"),
            "{text}"
        );
    }
}
