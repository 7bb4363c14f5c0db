//! Errors, and whether a retry can succeed.

mod driver;
mod kind;
mod not_ready;

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use self::kind::is_fatal;
use crate::redacted::{describe, without_value};

pub use driver::DriverError;
pub use kind::ErrorKind;
pub use not_ready::NotReady;

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
    /// Another driver than `tokio-postgres` returned this error. Its kind can be
    /// [`ErrorKind::AmbiguousCommit`].
    #[error("{0}")]
    Driver(#[source] Box<DriverError>),
    /// The connection was lost during COMMIT. The transaction may or may not have committed.
    ///
    /// **Do not acknowledge the message.** Let it be redelivered: the next claim then returns
    /// whether the transaction committed.
    #[error("the connection was lost during COMMIT: the transaction may or may not have committed")]
    AmbiguousCommit(#[source] Arc<tokio_postgres::Error>),
    /// The caller has ended the transaction before its commit. In a
    /// [`ClaimedTransaction`](crate::ClaimedTransaction) only ROLLBACK can end it, so everything
    /// until then is rolled back. [`commit`](fn@crate::commit) returns this error if no transaction
    /// is open, also after a COMMIT of the caller. Statements after the end have taken effect,
    /// unless they are in another transaction that is still open.
    #[error("the transaction was ended before its commit: do not execute ROLLBACK in it")]
    TransactionEnded,
    /// The caller has changed the role or the search_path in the transaction and has not restored
    /// it before the commit, so the functions of idem cannot be called (25000, 42501, 42883).
    /// Everything is rolled back.
    #[error(
        "the role or the search_path was changed in the transaction: restore both before its \
         commit: {}",
        describe(.0)
    )]
    SettingsChanged(#[source] tokio_postgres::Error),
    /// A pooler or a proxy has removed the comment from the COMMIT of a guarded transaction, so the
    /// server has rejected it (2D000). Everything is rolled back. Run the transaction again: this
    /// process now commits with [`idem_allow_commit`](crate::pipeline::ALLOW_COMMIT_COLUMN).
    #[error("a pooler has removed the comment from COMMIT: {}", describe(.0))]
    CommentRemoved(#[source] tokio_postgres::Error),
    /// The database lacks something that a consumer or a relay needs: see
    /// [`preflight`](crate::preflight).
    #[error(transparent)]
    NotReady(Box<NotReady>),
    /// The server returned a result that this version of the client does not support.
    #[error("unexpected response of the server: {0}")]
    Unexpected(String),
}

impl Error {
    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Encode(_) => ErrorKind::Invalid,
            Self::AmbiguousCommit(_) => ErrorKind::AmbiguousCommit,
            Self::TransactionEnded | Self::SettingsChanged(_) => ErrorKind::Terminal,
            Self::CommentRemoved(_) => ErrorKind::Conflict,
            Self::NotReady(lacks) => lacks.kind(),
            Self::Unexpected(_) => ErrorKind::Other,
            Self::Database(error) => ErrorKind::of(error),
            Self::Driver(error) => error.kind(),
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
            Self::Database(error) | Self::SettingsChanged(error) | Self::CommentRemoved(error) => {
                error.code()
            }
            Self::AmbiguousCommit(error) => error.code(),
            Self::Driver(error) => error.sqlstate(),
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
            Some(answer) if !is_fatal(answer) => Self::Database(error),
            _ => Self::AmbiguousCommit(Arc::new(error)),
        }
    }

    /// Classifies the error of a statement of idem that is sent together with the COMMIT of its
    /// transaction, as [`of_allow`](Self::of_allow) and [`of_commit`](Self::of_commit) do.
    pub(crate) fn of_last(error: tokio_postgres::Error) -> Self {
        match Self::of_allow(error) {
            Self::Database(error) => Self::of_commit(error),
            other => other,
        }
    }

    /// Classifies the error of [`ALLOW_COMMIT_COLUMN`](crate::pipeline::ALLOW_COMMIT_COLUMN), or of the end of a
    /// savepoint before it: 25P01 is [`Error::TransactionEnded`], and 42501 and 42883 are
    /// [`Error::SettingsChanged`].
    ///
    /// `idem_forbid_commit` has succeeded in the same transaction. So these errors do not mean that
    /// the extension or all grants of a consumer were missing when the transaction began.
    pub fn of_allow(error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION) => Self::TransactionEnded,
            Some(&SqlState::INSUFFICIENT_PRIVILEGE | &SqlState::UNDEFINED_FUNCTION) => {
                Self::SettingsChanged(error)
            }
            _ => Self::Database(error),
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(Box::new(error))
    }
}
