//! Known bugs that a campaign can plant in its own processes or in its own database.

use clap::ValueEnum;

/// A bug that the checker of a campaign must report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flaw {
    /// Consumers acknowledge a message when they receive it, before anything is committed.
    AckBeforeCommit,
    /// Consumers assume that the broker keeps rejected messages, but the broker deletes them.
    RejectDrops,
    /// A ring rotates in one step, without the step that opens the next slice and without a fence.
    SkippedFence,
    /// A lease is completed without a check of its token.
    IgnoredToken,
    /// The observer hangs after its connection to the broker was lost.
    StuckObserver,
}
