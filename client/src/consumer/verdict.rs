//! What follows for a message from how its processing ended.

use std::{error::Error as StdError, time::Duration};

use tokio_postgres::error::DbError;

use super::summary::Outcome;
use crate::{Error, ErrorKind, Processed, Settlement};

/// Whoever has the lease now says how long it is.
const AFTER_A_LOSS: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Verdict {
    /// It is over.
    Over(Settlement, Outcome),
    /// It comes again, and this was no failure.
    Again { after: Duration },
    /// It failed by itself: it comes again later, until it has failed too often.
    Failed(Error),
    /// Database or set-up failed: it comes again, and nothing is fetched until the database serves.
    Away(Error),
}

impl Verdict {
    pub(super) fn of(processed: Result<Processed, Error>) -> Self {
        match processed {
            Ok(processed) => Self::of_processed(&processed),
            // The database has counted it, and knows when.
            Err(Error::Attempt { retry_after, .. }) => Self::Again { after: retry_after },
            Err(Error::LeaseLost) => Self::Again { after: AFTER_A_LOSS },
            Err(error) if is_unfit(&error) => Self::Away(error),
            // At each attempt the database could be reached, and at each the handler has lost it. Were that no failure, a message
            // that ends its session, by taking too long for example, would come for ever.
            Err(error @ Error::Handler(_)) if error.kind() == ErrorKind::ConnectionLost => Self::Failed(error),
            Err(error) => match error.kind() {
                ErrorKind::Invalid | ErrorKind::MissingId | ErrorKind::Terminal => {
                    Self::Over(error.settlement(), Outcome::Rejected)
                }
                // Should an ambiguous commit have taken effect, the next delivery is a duplicate.
                ErrorKind::AmbiguousCommit
                | ErrorKind::ConnectionLost
                | ErrorKind::PoolExhausted
                // These are no fault of any message, and would send all of them to the dead letters.
                | ErrorKind::NotGranted
                | ErrorKind::NotInstalled => Self::Away(error),
                _ => Self::Failed(error),
            },
        }
    }

    fn of_processed(processed: &Processed) -> Self {
        match (processed, processed.settlement()) {
            (Processed::New { .. } | Processed::Unprotected { .. }, settlement) => Self::Over(settlement, Outcome::Handled),
            (Processed::Duplicate { .. }, settlement) => Self::Over(settlement, Outcome::Duplicate),
            (Processed::Buried { .. }, settlement) => Self::Over(settlement, Outcome::Rejected),
            (Processed::Dead, settlement) => Self::Over(settlement, Outcome::Duplicate),
            (_, Settlement::Retry { after }) => Self::Again { after },
            (_, settlement @ Settlement::Reject { .. }) => Self::Over(settlement, Outcome::Rejected),
            (_, settlement @ Settlement::Acknowledge) => Self::Over(settlement, Outcome::Stopped),
        }
    }
}

/// Whether the server serves nobody: its disk is full, it takes no writes, it does not know this role or database. Such an
/// error may also come out of a handler, which is the first to write in some styles.
pub(crate) fn is_unfit(error: &Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = match error {
        Error::Handler(error) if error.is_terminal() => None,
        Error::Handler(error) => Some(error.source()),
        other => Some(other),
    };
    while let Some(error) = cause {
        // `anyhow` shows the answer of the server, and hides the driver's error around it.
        let answer = error.downcast_ref::<DbError>().map(DbError::code);
        if let Some(state) = answer.or_else(|| error.downcast_ref().and_then(tokio_postgres::Error::code)) {
            return matches!(state.code(), "25006" | "28000" | "28P01" | "3D000" | "53100");
        }
        cause = error.source();
    }
    false
}
