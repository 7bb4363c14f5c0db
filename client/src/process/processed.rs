//! What became of a message, and what to tell its broker.

use std::time::Duration;

use uuid::Uuid;

use super::environment::is_environmental;
use crate::{Error, ErrorKind, RecordedEffect, Settlement};

/// What [`Idem::process`](crate::Idem::process) made of a message.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "it says what to tell the broker: see `settlement`"]
pub enum Processed {
    /// It was handled just now, and committed.
    New {
        /// The message ids of the effects, in order.
        effects: Vec<Uuid>,
    },
    /// It was handled just now, and committed, without a claim: it has no id, and its policy lets
    /// such messages pass.
    Unprotected {
        /// The message ids of the effects, in order.
        effects: Vec<Uuid>,
    },
    /// It was handled before.
    Duplicate {
        /// What was recorded then; empty unless the policy asks for it.
        effects: Vec<RecordedEffect>,
    },
    /// Another transaction is at it, and the policy says not to wait.
    InProgress,
    /// It is leased by somebody else, or rests after a failure.
    Leased {
        /// What is left of the lease or of the rest.
        retry_after: Duration,
    },
    /// It failed for good or too often, and is among the database's dead letters now.
    Buried {
        /// Why.
        reason: String,
    },
    /// It has been among the database's dead letters before.
    Dead,
    /// Another message was handled under this id.
    Mismatch,
    /// Sent so long ago that it can no longer be told from a duplicate.
    Expired,
    /// A filter stopped it before it was handled.
    Stopped {
        /// What the filter says to tell the broker.
        settlement: Settlement,
    },
}

impl Processed {
    /// What to tell the broker.
    pub fn settlement(&self) -> Settlement {
        match self {
            Self::New { .. } | Self::Unprotected { .. } | Self::Duplicate { .. } => {
                Settlement::Acknowledge
            }
            // The database keeps it, with its payload.
            Self::Buried { .. } | Self::Dead => Settlement::Acknowledge,
            Self::Leased { retry_after } => Settlement::Release {
                after: *retry_after,
            },
            Self::Stopped { settlement } => settlement.clone(),
            Self::InProgress => Settlement::Release {
                after: Duration::from_millis(100),
            },
            Self::Mismatch => Settlement::reject("another message was handled under this id"),
            Self::Expired => Settlement::reject("too old to be told from a duplicate"),
        }
    }
}

impl Error {
    /// What to tell the broker about the message that this came of.
    ///
    /// Never [`Settlement::Acknowledge`]. A message that can never succeed is rejected, every other
    /// one comes again. It is released when the database or the set-up failed, and when the
    /// database counts the failure itself; otherwise it is retried.
    pub fn settlement(&self) -> Settlement {
        use ErrorKind::{Invalid, MissingId, Terminal};

        match (self, self.kind()) {
            // The database has counted it.
            (Self::Attempt { retry_after, .. }, _) => Settlement::Release {
                after: *retry_after,
            },
            // Another process has the lease.
            (Self::LeaseLost, _) => Settlement::RELEASE,
            (_, Invalid | MissingId | Terminal) => Settlement::reject(self.to_string()),
            _ if is_environmental(self) => Settlement::RELEASE,
            _ => Settlement::RETRY,
        }
    }
}
