//! What the consumer does with a message after an attempt.

use std::time::Duration;

use super::{rejections::KeptAs, summary::DeliveryOutcome};
use crate::{Error, Processed, Settlement, settlement::HELD_ELSEWHERE_PAUSE};

#[derive(Debug)]
pub(super) enum Verdict {
    /// The message is finished, and is acknowledged.
    Over(DeliveryOutcome),
    /// The message is finished, and is kept as a dead letter.
    Rejected { reason: String, kept_as: KeptAs },
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
    pub(super) fn of(result: Result<Processed, Error>) -> Self {
        match result {
            Ok(processed) => Self::of_processed(&processed),
            // The database has counted the failure and scheduled the retry.
            Err(Error::Attempt { retry_after, .. }) => Self::Again { after: retry_after },
            // If another process has a new lease by then, the next attempt returns how long that
            // lease lasts.
            Err(Error::LeaseLost) => Self::Again {
                after: HELD_ELSEWHERE_PAUSE,
            },
            Err(error) => match error.settlement() {
                Settlement::Reject { reason } => Self::Rejected {
                    reason,
                    kept_as: KeptAs::Itself,
                },
                Settlement::Retry { after } => Self::Failed { error, after },
                // No error is acknowledged.
                Settlement::Release { .. } | Settlement::Acknowledge => Self::Environment(error),
            },
        }
    }

    fn of_processed(processed: &Processed) -> Self {
        match (processed.settlement(), processed) {
            (Settlement::Acknowledge, processed) => Self::Over(match processed {
                Processed::New { .. } | Processed::Unprotected { .. } => DeliveryOutcome::Handled,
                Processed::Duplicate { .. } | Processed::Dead => DeliveryOutcome::Duplicate,
                Processed::Buried { .. } => DeliveryOutcome::Rejected,
                _ => DeliveryOutcome::Stopped,
            }),
            (Settlement::Reject { reason }, Processed::Mismatch) => Self::Rejected {
                reason,
                kept_as: KeptAs::Hash,
            },
            (Settlement::Reject { reason }, _) => Self::Rejected {
                reason,
                kept_as: KeptAs::Itself,
            },
            (Settlement::Release { after }, _) => Self::Again { after },
            // Only a filter returns this settlement.
            (Settlement::Retry { after }, _) => Self::Failed {
                error: Error::Handler("a filter requested a retry".into()),
                after,
            },
        }
    }
}
