//! The settlement of a delivery at its broker.

use std::time::Duration;

/// How a delivery is settled at the broker.
///
/// A later version may have more settlements. A [`Receipt`](crate::Receipt) treats a settlement
/// that it does not know as a release, so that the message is redelivered and not lost: see
/// [`release_after`](Self::release_after).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

    /// Returns the shortest time until the redelivery of a message that is released.
    ///
    /// `None` if the message is acknowledged, retried or rejected. If a later version adds a
    /// settlement, this function returns a time for it, so that an older receipt releases the
    /// message.
    pub fn release_after(&self) -> Option<Duration> {
        match self {
            Self::Release { after } => Some(*after),
            Self::Acknowledge | Self::Retry { .. } | Self::Reject { .. } => None,
        }
    }

    /// Rejects the message for this reason.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject {
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a message that did not fail is released.
    #[test]
    fn only_a_release_has_a_release_time() {
        let second = Duration::from_secs(1);
        assert_eq!(
            Settlement::Release { after: second }.release_after(),
            Some(second)
        );
        for other in [
            Settlement::Acknowledge,
            Settlement::Retry { after: second },
            Settlement::reject("invalid"),
        ] {
            assert_eq!(other.release_after(), None, "{other:?}");
        }
    }
}
