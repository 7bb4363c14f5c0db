//! The three kinds of protection that are compared.

use std::fmt;

/// The protection of the business transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// The business transaction without any protection. It is the baseline.
    BusinessAlone,
    /// The same transaction with an inbox and an outbox that an application would write itself.
    ByHand,
    /// The same transaction in the handler of `Idem::process`.
    Idem,
}

impl Contestant {
    /// All contestants, from the least to the most protection.
    pub const ALL: [Self; 3] = [Self::BusinessAlone, Self::ByHand, Self::Idem];

    /// Returns the name that a person reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BusinessAlone => "business alone",
            Self::ByHand => "by hand",
            Self::Idem => "idem",
        }
    }

    /// Returns the number of times that a client waits for the server for one message.
    #[must_use]
    pub fn round_trips(self) -> u32 {
        match self {
            // BEGIN, UPDATE, COMMIT. The client of idem sends the claim with BEGIN, and the effects
            // with COMMIT.
            Self::BusinessAlone | Self::Idem => 3,
            // BEGIN, INSERT, UPDATE, INSERT, COMMIT.
            Self::ByHand => 5,
        }
    }

    /// Returns the schema with the tables of this contestant.
    pub(super) fn schema(self) -> &'static str {
        match self {
            Self::BusinessAlone => "cost_business_alone",
            Self::ByHand => "cost_by_hand",
            Self::Idem => "cost_idem",
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
