//! What the consumer does with a message after an attempt.

use std::time::Duration;

use super::summary::DeliveryOutcome;
use crate::{Error, Processed, Settlement};

/// The pause after a lost lease. If another process has a new lease by then, the next attempt
/// returns how long that lease lasts.
const AFTER_A_LOSS: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Verdict {
    /// The message is finished, and is settled without a rejection.
    Over(Settlement, DeliveryOutcome),
    /// The message is finished, and is kept as a dead letter.
    Rejected { reason: String },
    /// The message is redelivered after this time. The consumer counts no failure, because the
    /// database has counted it, or because another process holds the message.
    Again { after: Duration },
    /// The message failed. It is redelivered after this time or later, until it has failed too
    /// often.
    Failed { error: Error, after: Duration },
    /// An error of the environment. `Breakers::judge` decides whether the message is its cause, and
    /// what is paused.
    Environment(Error),
}

impl Verdict {
    pub(super) fn of(processed: Result<Processed, Error>) -> Self {
        match processed {
            Ok(processed) => Self::of_processed(&processed),
            // The database has counted the failure and scheduled the retry.
            Err(Error::Attempt { retry_after, .. }) => Self::Again { after: retry_after },
            Err(Error::LeaseLost) => Self::Again {
                after: AFTER_A_LOSS,
            },
            Err(error) => match error.settlement() {
                Settlement::Retry { after } => Self::Failed { error, after },
                Settlement::Release { .. } => Self::Environment(error),
                Settlement::Reject { reason } => Self::Rejected { reason },
                settlement @ Settlement::Acknowledge => {
                    Self::Over(settlement, DeliveryOutcome::Rejected)
                }
            },
        }
    }

    fn of_processed(processed: &Processed) -> Self {
        match (processed, processed.settlement()) {
            (_, Settlement::Reject { reason }) => Self::Rejected { reason },
            (Processed::New { .. } | Processed::Unprotected { .. }, settlement) => {
                Self::Over(settlement, DeliveryOutcome::Handled)
            }
            (Processed::Duplicate { .. }, settlement) => {
                Self::Over(settlement, DeliveryOutcome::Duplicate)
            }
            (Processed::Buried { .. }, settlement) => {
                Self::Over(settlement, DeliveryOutcome::Rejected)
            }
            (Processed::Dead, settlement) => Self::Over(settlement, DeliveryOutcome::Duplicate),
            (_, Settlement::Release { after }) => Self::Again { after },
            // Only a filter returns this settlement.
            (_, Settlement::Retry { after }) => Self::Failed {
                error: Error::Handler("a filter requested a retry".into()),
                after,
            },
            (_, settlement @ Settlement::Acknowledge) => {
                Self::Over(settlement, DeliveryOutcome::Stopped)
            }
        }
    }
}
