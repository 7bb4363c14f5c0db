//! What follows for a message from how its processing ended.

use std::time::Duration;

use super::summary::Outcome;
use crate::{Error, Processed, Settlement};

/// Whoever has the lease now says how long it is.
const AFTER_A_LOSS: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Verdict {
    /// It is over.
    Over(Settlement, Outcome),
    /// It comes again, and this was no failure.
    Again { after: Duration },
    /// It failed by itself. It comes again, after this time or later, until it has failed too
    /// often.
    Failed { error: Error, after: Duration },
    /// Database or set-up failed: it comes again, and nothing is fetched until the database serves.
    Away(Error),
}

impl Verdict {
    pub(super) fn of(processed: Result<Processed, Error>) -> Self {
        match processed {
            Ok(processed) => Self::of_processed(&processed),
            // The database has counted it, and knows when.
            Err(Error::Attempt { retry_after, .. }) => Self::Again { after: retry_after },
            Err(Error::LeaseLost) => Self::Again {
                after: AFTER_A_LOSS,
            },
            Err(error) => match error.settlement() {
                Settlement::Retry { after } => Self::Failed { error, after },
                Settlement::Release { .. } => Self::Away(error),
                settlement => Self::Over(settlement, Outcome::Rejected),
            },
        }
    }

    fn of_processed(processed: &Processed) -> Self {
        match (processed, processed.settlement()) {
            (Processed::New { .. } | Processed::Unprotected { .. }, settlement) => {
                Self::Over(settlement, Outcome::Handled)
            }
            (Processed::Duplicate { .. }, settlement) => Self::Over(settlement, Outcome::Duplicate),
            (Processed::Buried { .. }, settlement) => Self::Over(settlement, Outcome::Rejected),
            (Processed::Dead, settlement) => Self::Over(settlement, Outcome::Duplicate),
            (_, Settlement::Release { after }) => Self::Again { after },
            // Only a filter returns this.
            (_, Settlement::Retry { after }) => Self::Failed {
                error: Error::Handler("a filter asks for another attempt".into()),
                after,
            },
            (_, settlement @ Settlement::Reject { .. }) => {
                Self::Over(settlement, Outcome::Rejected)
            }
            (_, settlement @ Settlement::Acknowledge) => Self::Over(settlement, Outcome::Stopped),
        }
    }
}
