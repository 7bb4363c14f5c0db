//! The implementations that are compared.

/// The implementation that a trial tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// Handlers without protection, which treat every delivery as a new message.
    Nothing,
    /// Handlers that are idempotent by id.
    ById,
    /// Handlers that claim each message with idem.
    Idem,
}

impl System {
    /// All systems, from the least to the most protection.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::ById, Self::Idem];

    /// Returns the name that a person reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "unprotected",
            Self::ById => "by id",
            Self::Idem => "idem",
        }
    }
}
