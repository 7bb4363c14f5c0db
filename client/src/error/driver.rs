//! The errors of drivers other than `tokio-postgres`.

use tokio_postgres::error::SqlState;

use super::{ErrorKind, kind::kind_of_server};
use crate::redacted::{Described, causes, server_text};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The error of another driver than `tokio-postgres`. An [`Executor`](crate::Executor) for such a
/// driver creates it.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct DriverError {
    kind: ErrorKind,
    state: Option<SqlState>,
    /// The server has returned an ERROR, after which the transaction is certainly rolled back.
    is_rejection: bool,
    source: Described,
}

impl DriverError {
    /// Creates the error that the server has returned, with its SQLSTATE, its message and its hint.
    /// `is_fatal`: the severity is FATAL or PANIC, so the connection has ended.
    pub fn of_server(
        state: &str,
        message: &str,
        hint: Option<&str>,
        is_fatal: bool,
        source: impl Into<Cause>,
    ) -> Self {
        let state = SqlState::from_code(state);
        Self {
            kind: kind_of_server(&state, is_fatal),
            is_rejection: !is_fatal,
            source: Described {
                text: server_text(&state, message, hint),
                source: source.into(),
            },
            state: Some(state),
        }
    }

    /// Creates the error of the driver itself, for example
    /// [`ErrorKind::ConnectionLost`] or [`ErrorKind::Other`].
    pub fn of_driver(kind: ErrorKind, source: impl Into<Cause>) -> Self {
        let source = source.into();
        Self {
            kind,
            state: None,
            is_rejection: false,
            source: Described {
                text: causes(&*source, |_| false),
                source,
            },
        }
    }

    /// Returns this error as the error of a COMMIT. Unless the server has returned an ERROR, it is
    /// unknown whether the transaction has committed.
    #[must_use]
    pub fn of_commit(self) -> Self {
        let kind = match self.is_rejection {
            true => self.kind,
            false => ErrorKind::AmbiguousCommit,
        };
        Self { kind, ..self }
    }

    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the SQLSTATE, if the server has returned this error.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        self.state.as_ref()
    }
}
