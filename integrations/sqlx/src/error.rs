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
    with_source(&error)(error)
}

/// Returns an error of sqlx inside the error of a library that uses sqlx. `source` is the error of
/// the library.
///
/// [`DriverError::of_commit`] makes it the error of a COMMIT.
pub fn driver_error_in(error: &sqlx::Error, source: impl Into<Cause>) -> DriverError {
    with_source(error)(source)
}

/// Returns a function that returns this error with a source. The function owns copies of the parts
/// of the error, because the source can be the error itself.
fn with_source<S: Into<Cause>>(error: &sqlx::Error) -> impl FnOnce(S) -> DriverError + use<S> {
    let kind = kind_of(error);
    let server = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let server = server.map(|server| {
        let is_fatal = matches!(server.severity(), PgSeverity::Fatal | PgSeverity::Panic);
        let hint = server.hint().map(str::to_owned);
        (
            server.code().to_owned(),
            server.message().to_owned(),
            hint,
            is_fatal,
        )
    });
    move |source| match server {
        Some((state, message, hint, is_fatal)) => {
            DriverError::of_server(&state, &message, hint.as_deref(), is_fatal, source)
        }
        None => DriverError::of_driver(kind, source),
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
