//! Which errors say nothing about the message: the database or the set-up failed.

use std::error::Error as StdError;

use tokio_postgres::error::DbError;

use crate::{Error, ErrorKind};

/// Whether another message would have met the same error.
pub(crate) fn is_environmental(error: &Error) -> bool {
    if is_unfit(error) {
        return true;
    }
    match error.kind() {
        // The database could be reached at each attempt, and the handler lost it each time: a
        // message may end its session, for example by taking too long. Without a count it would
        // come for ever.
        ErrorKind::ConnectionLost => !matches!(error, Error::Handler(_)),
        // Should an ambiguous commit have taken effect, the next delivery is a duplicate.
        ErrorKind::AmbiguousCommit | ErrorKind::PoolExhausted => true,
        // A missing grant or extension would send all messages to the dead letters.
        ErrorKind::NotGranted | ErrorKind::NotInstalled => true,
        _ => false,
    }
}

/// Whether the server cannot serve this client at all: its disk is full, it is read-only, it does
/// not know the role or the database, or it keeps no more dead letters. A handler may be the first to meet this error, because
/// in some styles it is the first to write.
pub(super) fn is_unfit(error: &Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = match error {
        Error::Handler(error) if error.is_terminal() => None,
        Error::Handler(error) => Some(error.source()),
        other => Some(other),
    };
    while let Some(error) = cause {
        // `anyhow` shows the answer of the server, and hides the driver's error around it.
        let answer = error.downcast_ref::<DbError>().map(DbError::code);
        if let Some(state) = answer.or_else(|| error.downcast_ref().and_then(tokio_postgres::Error::code)) {
            return matches!(state.code(), "25006" | "28000" | "28P01" | "3D000" | "53100" | "53400");
        }
        cause = error.source();
    }
    false
}
