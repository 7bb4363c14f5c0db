//! Translates the errors of sqlx.

use idem_client::{DriverError, Error, ErrorKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// Returns an error of sqlx as an error of the client, with its kind: whether the transaction can
/// be run again. The source is the error of sqlx.
///
/// The functions of the client return such errors. Use this function for the errors of the
/// statements of the application in the same transaction.
pub fn translated(error: sqlx::Error) -> Error {
    driver_error(error).into()
}

pub(crate) fn driver_error(error: sqlx::Error) -> DriverError {
    let server = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let Some(server) = server else {
        let kind = match error {
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed => {
                ErrorKind::ConnectionLost
            }
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => ErrorKind::PoolExhausted,
            _ => ErrorKind::Other,
        };
        return DriverError::of_driver(kind, error);
    };
    let is_fatal = matches!(server.severity(), PgSeverity::Fatal | PgSeverity::Panic);
    let (state, message) = (server.code().to_owned(), server.message().to_owned());
    let hint = server.hint().map(str::to_owned);
    DriverError::of_server(&state, &message, hint.as_deref(), is_fatal, error)
}
