//! The error of a database that lacks something.

use std::fmt;

use tokio_postgres::error::SqlState;

use super::ErrorKind;

/// What the database lacks, and how to correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    pub(crate) state: SqlState,
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl NotReady {
    /// Returns the SQLSTATE that the server returns for this problem: 42883, 42501, or 58000 for
    /// versions that do not match.
    pub fn sqlstate(&self) -> &SqlState {
        &self.state
    }

    /// Returns the kind of this problem: a missing grant, or a missing installation.
    pub fn kind(&self) -> ErrorKind {
        match self.state == SqlState::INSUFFICIENT_PRIVILEGE {
            true => ErrorKind::NotGranted,
            false => ErrorKind::NotInstalled,
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.state.code(), self.message, self.hint)
    }
}

impl std::error::Error for NotReady {}
