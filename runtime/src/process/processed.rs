//! The outcome of a message, and its settlement at the broker.

use std::time::Duration;

use idem_client::{ErrorKind, RecordedEffect};
use uuid::Uuid;

use super::environment::caused_by_environment;
use crate::{Error, Settlement, settlement::HELD_ELSEWHERE_PAUSE};

/// The result of a message.
pub(crate) type ProcessResult = Result<Processed, Error>;

/// The outcome of a message, as [`Idem::process`](crate::Idem::process) returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "it contains the settlement for the broker: see `settlement`"]
pub enum Processed {
    /// The message was processed now, and this is committed.
    New {
        /// The message ids of the effects, in order.
        effects: Vec<Uuid>,
    },
    /// The message was processed now, and its transaction is committed, but without a claim. The
    /// message has no id, and its policy accepts such messages.
    Unprotected {
        /// The message ids of the effects, in order.
        effects: Vec<Uuid>,
    },
    /// The message was processed before.
    Duplicate {
        /// The effects that the first execution recorded. Empty unless the policy requests them.
        effects: Vec<RecordedEffect>,
    },
    /// Another transaction is processing the message, and the policy disables waiting.
    InProgress,
    /// Another process holds the lease, or the message waits for its next attempt after a failure.
    Leased {
        /// The remaining time of the lease or of the wait.
        retry_after: Duration,
    },
    /// The message failed with a terminal error or too often. It is now a dead letter of the
    /// database.
    Buried {
        /// The reason.
        reason: String,
    },
    /// The message was already a dead letter of the database.
    Dead,
    /// Another message with the same id was processed before.
    Mismatch,
    /// The message was sent too long ago to be distinguished from a duplicate.
    Expired,
    /// A filter stopped the message before it was processed.
    Stopped {
        /// The settlement that the filter returned.
        settlement: Settlement,
    },
}

impl Processed {
    /// The outcome of a duplicate whose recorded effects are not read.
    pub(crate) fn duplicate() -> Self {
        Self::Duplicate {
            effects: Vec::new(),
        }
    }

    /// Returns the settlement for the broker.
    pub fn settlement(&self) -> Settlement {
        match self {
            Self::New { .. } | Self::Unprotected { .. } | Self::Duplicate { .. } => {
                Settlement::Acknowledge
            }
            // The database keeps the message with its payload.
            Self::Buried { .. } | Self::Dead => Settlement::Acknowledge,
            Self::Leased { retry_after } => Settlement::Release {
                after: *retry_after,
            },
            Self::Stopped { settlement } => settlement.clone(),
            Self::InProgress => Settlement::Release {
                after: HELD_ELSEWHERE_PAUSE,
            },
            Self::Mismatch => Settlement::reject("another message was processed under this id"),
            Self::Expired => Settlement::reject("too old to be distinguished from a duplicate"),
        }
    }
}

impl Error {
    /// Returns the settlement for the message that got this error.
    ///
    /// Never returns [`Settlement::Acknowledge`]. A message that can never succeed is rejected.
    /// Every other message is redelivered: it is released if the database or the set-up failed, or
    /// if the database counts the failure itself. Otherwise it is retried.
    pub fn settlement(&self) -> Settlement {
        use ErrorKind::{Invalid, MissingId, Terminal};

        match (self, self.kind()) {
            // The database has counted the failure.
            (Self::Attempt { retry_after, .. }, _) => Settlement::Release {
                after: *retry_after,
            },
            // Another process holds the lease.
            (Self::LeaseLost, _) => Settlement::RELEASE,
            (_, Invalid | MissingId | Terminal) => Settlement::reject(self.to_string()),
            _ if caused_by_environment(self) => Settlement::RELEASE,
            _ => Settlement::RETRY,
        }
    }
}
