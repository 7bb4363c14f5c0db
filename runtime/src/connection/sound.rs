//! Which errors leave a connection usable.

use idem_client::{Error as Call, ErrorKind};
use tokio_postgres::error::SqlState;

use crate::Error;

/// Returns whether the connection can be used again after this error. After an error that is not
/// known to be harmless, the connection must not be used again.
pub(crate) fn leaves_connection_sound(error: &Error) -> bool {
    // If the server is read-only, another server may be the primary now. A new connection finds it.
    let is_useless = |kind| matches!(kind, ErrorKind::ConnectionLost | ErrorKind::ReadOnly);
    match error {
        Error::Handler(error) => !error.database_kind().is_some_and(is_useless),
        // Without its prepared statements, the connection fails with each further message.
        Error::Client(Call::Database(answer)) => {
            answer.code() != Some(&SqlState::INVALID_SQL_STATEMENT_NAME)
                && answer.as_db_error().is_some()
                && !is_useless(error.kind())
        }
        Error::Invalid(_) | Error::Client(Call::Encode(_)) | Error::Decode(_) => true,
        _ => false,
    }
}
