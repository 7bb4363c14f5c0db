//! Known bugs that a campaign can plant, in its own processes or in its own database.

use clap::ValueEnum;

/// A bug that the checker of a campaign must report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flaw {
    /// Consumers acknowledge a message when they get it, before anything is committed.
    AckBeforeCommit,
    /// Consumers believe that the broker keeps rejected messages, and it deletes them.
    RejectDrops,
    /// A ring turns without an opening and without a fence.
    SkippedFence,
    /// A lease is completed without a look at its token.
    IgnoredToken,
    /// The observer does nothing any more once its connection to the broker has broken.
    StuckObserver,
}

impl Flaw {
    /// The name on a command line.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::AckBeforeCommit => "ack-before-commit",
            Self::RejectDrops => "reject-drops",
            Self::SkippedFence => "skipped-fence",
            Self::IgnoredToken => "ignored-token",
            Self::StuckObserver => "stuck-observer",
        }
    }
}
