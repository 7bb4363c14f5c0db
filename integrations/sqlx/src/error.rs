//! Translates the errors of sqlx.

use idem_client::{DriverError, Error, ErrorKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Returns an error of sqlx as an error of the client, with its kind: whether the transaction can
/// be run again. The source is the error of sqlx.
///
/// The functions of the client return such errors. Use this function for the errors of the
/// statements of the application in the same transaction.
pub fn translated(error: sqlx::Error) -> Error {
    driver_error(error).into()
}

pub(crate) fn driver_error(error: sqlx::Error) -> DriverError {
    match ServerError::of(&error) {
        Some(server) => server.caused_by(error),
        None => DriverError::of_driver(kind_of(&error), error),
    }
}

/// Returns an error of sqlx inside the error of a library that uses sqlx. `source` is the error of
/// the library.
///
/// [`DriverError::of_commit`] makes it the error of a COMMIT.
pub fn driver_error_in(error: &sqlx::Error, source: impl Into<Cause>) -> DriverError {
    match ServerError::of(error) {
        Some(server) => server.caused_by(source),
        None => DriverError::of_driver(kind_of(error), source),
    }
}

fn kind_of(error: &sqlx::Error) -> ErrorKind {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed => {
            ErrorKind::ConnectionLost
        }
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => ErrorKind::PoolExhausted,
        _ => ErrorKind::Other,
    }
}

/// The error that the server has returned.
struct ServerError {
    state: String,
    message: String,
    hint: Option<String>,
    is_fatal: bool,
}

impl ServerError {
    fn of(error: &sqlx::Error) -> Option<Self> {
        let server = error
            .as_database_error()?
            .try_downcast_ref::<PgDatabaseError>()?;
        Some(Self {
            state: server.code().to_owned(),
            message: server.message().to_owned(),
            hint: server.hint().map(str::to_owned),
            is_fatal: matches!(server.severity(), PgSeverity::Fatal | PgSeverity::Panic),
        })
    }

    fn caused_by(self, source: impl Into<Cause>) -> DriverError {
        let hint = self.hint.as_deref();
        DriverError::of_server(&self.state, &self.message, hint, self.is_fatal, source)
    }
}
