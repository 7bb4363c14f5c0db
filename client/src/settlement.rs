//! What becomes of a delivery at its broker.

use std::time::Duration;

/// What to tell the broker about one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the broker waits to be told"]
pub enum Settlement {
    /// It has taken effect, now or before: the broker forgets it.
    Acknowledge,
    /// The message failed. It shall come again, and a broker that counts failures counts this one.
    Retry {
        /// Not before this time, where the broker can wait. The durable inbox waits as its retry
        /// policy says.
        after: Duration,
    },
    /// The message was not tried, or what failed was not the message. It shall come again, and a
    /// broker that can tell the difference does not count this as a failure.
    Release {
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
    /// The message failed. It comes again at once.
    pub const RETRY: Self = Self::Retry {
        after: Duration::ZERO,
    };

    /// The message did not fail. It comes again at once.
    pub const RELEASE: Self = Self::Release {
        after: Duration::ZERO,
    };

    /// Refuse it for this reason.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject {
            reason: reason.into(),
        }
    }
}
