//! What becomes of a delivery at its broker.

use std::time::Duration;

/// What to tell the broker about one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the broker waits to be told"]
pub enum Settlement {
    /// It has taken effect, now or before: the broker forgets it.
    Acknowledge,
    /// It has not taken effect, or nobody knows: it shall come again.
    Retry {
        /// Not before this time, where the broker can wait.
        after: Duration,
    },
    /// It never can take effect: the broker's dead letters are its place.
    Reject {
        /// Why.
        reason: String,
    },
}

impl Settlement {
    /// Come again, at once.
    pub const RETRY: Self = Self::Retry { after: Duration::ZERO };

    /// Refuse it for this reason.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject { reason: reason.into() }
    }
}
