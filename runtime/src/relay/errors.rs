//! What an error of a statement means for the relay.

use idem_client::ErrorKind;
use tokio_postgres::error::SqlState;

use crate::Error;

/// Returns whether an error is permanent: a setting is out of range, or sessions are not READ
/// COMMITTED. All other errors can end while relays wait, because an administrator can add what the
/// database lacks, and change what exceeds a limit (54000).
pub(super) fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid
        && error.sqlstate() != Some(&SqlState::PROGRAM_LIMIT_EXCEEDED)
        || error.sqlstate() == Some(&SqlState::INVALID_TRANSACTION_STATE)
}

/// Returns whether a transaction failed because of a concurrent transaction (40001, 40P01). The
/// database is available, so the statement is retried and no failure is reported. 55P03 is
/// different: a table was locked for longer than `lock_timeout`, so the database is not available
/// to the relay.
pub(super) fn is_lost_conflict(error: &Error) -> bool {
    let lost = [
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
    ];
    error.sqlstate().is_some_and(|state| lost.contains(&state))
}

/// Returns whether the relay does not exist. The number of partitions must then be read again,
/// because a new relay of the same name may have a different number.
pub(super) fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Returns the more important one of two errors that end a relay. "The relay does not exist" is the
/// least important error, because the process then waits until the relay is created again.
pub(super) fn worse(known: Option<Error>, other: Error) -> Option<Error> {
    known.filter(|known| !is_gone(known)).or(Some(other))
}
