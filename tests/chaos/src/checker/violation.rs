//! The errors that a campaign checks for.
//!
//! A command is a shot, which has an attempt id, or a move of a target. The result of a shot is
//! published as a fact. The board counts the hits of the players, and a letter is written for each
//! hit. A step is a numbered message of a key.

/// One row of errors in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// An attempt without a published fact, or a hit that the board did not count.
    Lost,
    /// A command that was handled twice within the retention.
    HandledTwice,
    /// A command or a fact that was redelivered after the retention. This is an error of the
    /// campaign and not of idem.
    Late,
    /// An attempt with rows that differ from its fact.
    Torn,
    /// An attempt that both hit and missed.
    Contradiction,
    /// A fact that was published with different ids or different bytes.
    OtherFact,
    /// A claimed attempt without exactly one recorded effect.
    NotOneEffect,
    /// A move that was not handled exactly once.
    MoveNotOnce,
    /// A hit that the board counted twice within the retention.
    HitAgain,
    /// A player with a wrong number of hits on the board.
    WrongBoard,
    /// An id that was claimed twice within its retention.
    ClaimedTwice,
    /// A claim that was not found within its retention.
    ForgottenEarly,
    /// A commit that was acknowledged and is missing in the table.
    CommitLost,
    /// An identity with two claims.
    TwoClaims,
    /// A lease that was completed with its token after another session had acquired it.
    LostToken,
    /// A leased id that was completed twice.
    CompletedTwice,
    /// A hit without a letter.
    LetterLost,
    /// A hit with more than one letter.
    LetterTwice,
    /// A step that was committed and not published.
    StepLost,
    /// A step that was published after a later step of its key.
    StepOutOfOrder,
    /// A poison message without exactly one dead letter.
    PoisonNotOnce,
    /// A dead letter with a wrong error.
    OtherReason,
    /// A repaired and requeued message that was not handled exactly once.
    MendedNotOnce,
    /// A dead letter of a message that is not poison.
    GivenUp,
    /// An effect that was parked.
    Parked,
    /// A row of inbox or outbox that was updated.
    UpdatedRow,
    /// A wait for a lock on a relation of idem that a maintenance process held.
    MaintenanceWait,
    /// A deadlock that involves a maintenance process.
    MaintenanceDeadlock,
    /// A server process that was terminated by a signal that the campaign did not send.
    ServerCrashed,
    /// A fault after which a stream did not continue within a minute.
    NotRecovered,
    /// A process that ended without being killed or stopped.
    ProcessEnded,
    /// A queue that is not empty at the end, or an effect that is not published.
    NotDrained,
}

impl Violation {
    /// All errors, in the order of the ledger.
    pub const ALL: [Self; 32] = [
        Self::Lost,
        Self::HandledTwice,
        Self::Late,
        Self::Torn,
        Self::Contradiction,
        Self::OtherFact,
        Self::NotOneEffect,
        Self::MoveNotOnce,
        Self::HitAgain,
        Self::WrongBoard,
        Self::ClaimedTwice,
        Self::ForgottenEarly,
        Self::CommitLost,
        Self::TwoClaims,
        Self::LostToken,
        Self::CompletedTwice,
        Self::LetterLost,
        Self::LetterTwice,
        Self::StepLost,
        Self::StepOutOfOrder,
        Self::PoisonNotOnce,
        Self::OtherReason,
        Self::MendedNotOnce,
        Self::GivenUp,
        Self::Parked,
        Self::UpdatedRow,
        Self::MaintenanceWait,
        Self::MaintenanceDeadlock,
        Self::ServerCrashed,
        Self::NotRecovered,
        Self::ProcessEnded,
        Self::NotDrained,
    ];

    /// Returns the name of the row in the ledger.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "commands or hits lost",
            Self::HandledTwice => "commands handled twice within the retention",
            Self::Late => "messages delivered again after the retention",
            Self::Torn => "attempts with rows that differ from their fact",
            Self::Contradiction => "attempts that hit and missed",
            Self::OtherFact => "facts published with different ids or bytes",
            Self::NotOneEffect => "claimed attempts without exactly one effect",
            Self::MoveNotOnce => "moves not made exactly once",
            Self::HitAgain => "hits counted twice within the retention",
            Self::WrongBoard => "players with a wrong number of hits",
            Self::ClaimedTwice => "ids claimed twice within the retention",
            Self::ForgottenEarly => "claims forgotten within the retention (I6)",
            Self::CommitLost => "acknowledged commits lost",
            Self::TwoClaims => "identities with two claims",
            Self::LostToken => "leases completed with an invalid token",
            Self::CompletedTwice => "leased ids completed twice",
            Self::LetterLost => "hits without a letter",
            Self::LetterTwice => "hits with more than one letter",
            Self::StepLost => "committed steps not published",
            Self::StepOutOfOrder => "steps published out of order within their key",
            Self::PoisonNotOnce => "poison messages without exactly one dead letter",
            Self::OtherReason => "dead letters with a wrong error",
            Self::MendedNotOnce => "requeued messages not handled exactly once",
            Self::GivenUp => "dead letters of messages that are not poison",
            Self::Parked => "effects parked",
            Self::UpdatedRow => "rows of inbox and outbox updated (I7)",
            Self::MaintenanceWait => "waits for a lock held by maintenance (I11)",
            Self::MaintenanceDeadlock => "deadlocks that involve maintenance",
            Self::ServerCrashed => "server processes that crashed",
            Self::NotRecovered => "faults after which a stream did not continue",
            Self::ProcessEnded => "processes that ended unexpectedly",
            Self::NotDrained => "queues not empty and effects not published",
        }
    }
}
