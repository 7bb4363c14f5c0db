//! The settlement of a delivery at its broker.

use std::time::Duration;

/// The pause before another look at a message that another process or transaction holds, when it is
/// not known how long it does.
pub(crate) const HELD_ELSEWHERE_PAUSE: Duration = Duration::from_millis(100);

/// How a delivery is settled at the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the broker waits for the settlement"]
pub enum Settlement {
    /// The message has taken effect, now or before. The broker removes it.
    Acknowledge,
    /// The message failed. The broker redelivers it, and counts the failure if it counts failures.
    Retry {
        /// The shortest time until the redelivery, if the broker supports it. The durable inbox
        /// uses its retry policy instead.
        after: Duration,
    },
    /// The message was not tried, or it was not the cause of the failure. The broker redelivers it.
    /// If the broker can distinguish a release from a failure, it does not count a failure.
    Release {
        /// The shortest time until the redelivery, if the broker supports it.
        after: Duration,
    },
    /// The message can never take effect. It is kept as a dead letter: by the broker if
    /// [`Receipt::keeps_rejected`](crate::Receipt::keeps_rejected), otherwise by the consumer in
    /// `idem.dead_letter`.
    Reject {
        /// The reason.
        reason: String,
    },
}

impl Settlement {
    /// The message failed. It is redelivered at once.
    pub const RETRY: Self = Self::Retry {
        after: Duration::ZERO,
    };

    /// The message did not fail. It is redelivered at once.
    pub const RELEASE: Self = Self::Release {
        after: Duration::ZERO,
    };

    /// Rejects the message for this reason.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject {
            reason: reason.into(),
        }
    }
}
