//! The error of the runtime, and whether a retry can succeed.

mod classify;
mod decode;
mod handler;

use std::time::Duration;

use idem_client::{ErrorKind, redacted::describe};
use tokio_postgres::error::SqlState;

use crate::consumer::SourceEnded;

pub use decode::DecodeError;
pub(crate) use handler::causes;
pub use handler::{HandlerError, HandlerFailed};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid. The server would reject it with 22023. Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// A function of the client failed. Its errors `Invalid` and `Unexpected` become the variants of
    /// this type. After an [`AmbiguousCommit`](idem_client::Error::AmbiguousCommit), do not
    /// acknowledge the message.
    #[error("{0}")]
    Client(#[source] idem_client::Error),
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
    /// The pool provided no connection in time, or the pool is closed.
    #[error("no connection from the pool: {0}")]
    Pool(String),
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
            Self::Client(error) => error.sqlstate(),
            _ => None,
        }
    }
}

impl From<idem_client::Error> for Error {
    fn from(error: idem_client::Error) -> Self {
        match error {
            idem_client::Error::Invalid(text) => Self::Invalid(text),
            idem_client::Error::Unexpected(text) => Self::Unexpected(text),
            other => Self::Client(other),
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
            deadpool_postgres::PoolError::Backend(error) => error.into(),
            other => Self::Pool(other.to_string()),
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Client(error.into())
    }
}
