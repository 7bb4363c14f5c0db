//! The error of the runtime, and whether a retry can succeed.

mod classify;
mod decode;
mod handler;

use std::{sync::Arc, time::Duration};

use idem_client::{
    ErrorKind,
    preflight::NotReady,
    redacted::{describe, without_value},
};
use tokio_postgres::error::SqlState;

use crate::consumer::SourceEnded;

pub use decode::DecodeError;
pub(crate) use handler::causes;
pub use handler::{HandlerError, HandlerFailed};

/// An error of this crate.
///
/// An error of [`idem_client`] converts into the variant of the same name. So the causes of this
/// error contain no [`idem_client::Error`].
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
    /// Another driver than `tokio-postgres` returned this error to a function of the client that
    /// the handler called.
    #[error("{0}")]
    Driver(#[source] Box<idem_client::DriverError>),
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
    /// The handler failed, and its transaction was rolled back.
    #[error("the handler failed: {0}")]
    Handler(HandlerError),
    /// The handler failed under a lease. The database has counted the attempt and scheduled the
    /// next one.
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
    #[error(transparent)]
    SourceEnded(Box<SourceEnded>),
    /// A task of a consumer or relay panicked before a shutdown was requested. The other tasks have
    /// finished their work and stopped.
    #[error("a worker panicked: {0}")]
    WorkerPanicked(String),
    /// The handler kept its [`Tx`](crate::Tx) after it returned. Its connection is closed, which
    /// rolls back.
    #[error("the handler has kept its transaction: drop it before the handler ends")]
    TransactionKept,
    /// The handler has ended its transaction before it returned: it executed ROLLBACK in its
    /// [`Tx`](crate::Tx). Nothing until then has taken effect, and the message is not claimed. The
    /// statements after that have taken effect, unless they are in another transaction that is
    /// still open. In a batch this includes the statements of the next handler, which are
    /// repeated. The effects of a message without a claim may be sent.
    #[error("the handler has ended its transaction itself: it must not execute ROLLBACK")]
    TransactionEnded,
    /// The handler has changed the role or the search_path in its [`Tx`](crate::Tx) and has not
    /// restored it before it returned, so the functions of idem cannot be called (42501, 42883).
    /// Nothing has taken effect, unless the handler has also ended the transaction.
    #[error(
        "the handler has changed the role or the search_path of its transaction: it must restore \
         both before it returns: {}",
        describe(.0)
    )]
    SettingsChanged(#[source] tokio_postgres::Error),
    /// The pool provided no connection in time, or the pool is closed.
    #[error("no connection from the pool: {0}")]
    Pool(String),
    /// The database lacks something that a consumer or a relay needs: see
    /// [`idem_client::preflight`].
    #[error(transparent)]
    NotReady(Box<NotReady>),
    /// The policy of the destination contradicts the function that was called, for example
    /// `fingerprint` and [`process_checked`](crate::Idem::process_checked). The message was not
    /// processed. The message is not the cause, so it is released.
    #[error("{0}")]
    Policy(String),
    /// The server returned a result that this version of the client does not support.
    #[error("unexpected response of the server: {0}")]
    Unexpected(String),
}

impl Error {
    /// Returns the SQLSTATE, if this error has one.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) | Self::SettingsChanged(error) => error.code(),
            Self::AmbiguousCommit(error) => error.code(),
            Self::Driver(error) => error.sqlstate(),
            Self::NotReady(lacks) => Some(lacks.sqlstate()),
            _ => None,
        }
    }
}

impl From<idem_client::Error> for Error {
    fn from(error: idem_client::Error) -> Self {
        use idem_client::Error as Call;
        match error {
            Call::Invalid(text) => Self::Invalid(text),
            Call::Encode(error) => Self::Encode(error),
            Call::Database(error) => Self::Database(error),
            Call::AmbiguousCommit(error) => Self::AmbiguousCommit(error),
            Call::Driver(error) => Self::Driver(error),
            Call::TransactionEnded => Self::TransactionEnded,
            Call::SettingsChanged(error) => Self::SettingsChanged(error),
            Call::NotReady(lacks) => Self::NotReady(lacks),
            Call::Unexpected(text) => Self::Unexpected(text),
            // This arm is not reached, because the client and the runtime have the same version.
            // The compiler requires the arm for a non-exhaustive enum.
            other => Self::Unexpected(other.to_string()),
        }
    }
}

impl From<deadpool_postgres::PoolError> for Error {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            // A failure before the server replies, for example in TLS or in the path of a socket,
            // counts as a failure of the pool, because the statement of the caller is not its
            // cause.
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
