//! Everything that must not happen.

/// One row of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// A command that took no effect, or a hit that the board did not count.
    Lost,
    /// A command that took effect twice within the retention.
    HandledTwice,
    /// A command or a fact that came again after the retention: the campaign is wrong, and not
    /// idem.
    Late,
    /// An attempt whose rows are not what its fact says.
    Torn,
    /// An attempt that both hit and missed.
    Contradiction,
    /// A fact that was published with another id, or with other bytes.
    OtherFact,
    /// An attempt whose claim has not exactly one effect.
    NotOneEffect,
    /// A move that was not made once.
    MoveNotOnce,
    /// A hit that the board counted twice within the retention.
    HitAgain,
    /// A player whose hits on the board are wrong.
    WrongBoard,
    /// An id that was claimed twice within its retention.
    ClaimedTwice,
    /// A claim that was not found within its retention.
    ForgottenEarly,
    /// A commit that was acknowledged, and is not there.
    CommitLost,
    /// An identity with two claims.
    TwoClaims,
    /// A lease that was completed after another session had got it.
    LostToken,
    /// A leased id that was completed twice.
    CompletedTwice,
    /// A hit without a letter.
    LetterLost,
    /// A hit with two letters.
    LetterTwice,
    /// A step that was committed, and not published.
    StepLost,
    /// A step that was published before an earlier one of its key.
    StepOutOfOrder,
    /// A message that is not among the dead letters once.
    PoisonNotOnce,
    /// A dead letter with another reason.
    OtherReason,
    /// A repaired message that was not handled once.
    MendedNotOnce,
    /// A dead letter of a message that can be handled.
    GivenUp,
    /// An effect that was parked.
    Parked,
    /// A row of inbox or outbox that was updated.
    UpdatedRow,
    /// A wait for a lock on a relation that a process of the maintenance held.
    MaintenanceWait,
    /// A deadlock with a process of the maintenance.
    MaintenanceDeadlock,
    /// A process of a server that a signal ended which the campaign had not sent.
    ServerCrashed,
    /// A fault after which a stream stood still for a minute.
    NotRecovered,
    /// A process that ended, and was not killed.
    ProcessEnded,
    /// A queue that is not empty in the end, or an effect that is not published.
    NotDrained,
}

impl Violation {
    /// All of them, in the order of the ledger.
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

    /// The name of its row.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "commands or hits lost",
            Self::HandledTwice => "commands handled twice within the retention",
            Self::Late => "messages delivered again after the retention",
            Self::Torn => "attempts whose rows differ from their fact",
            Self::Contradiction => "attempts that hit and missed",
            Self::OtherFact => "facts published with another id or other bytes",
            Self::NotOneEffect => "claimed attempts without exactly one effect",
            Self::MoveNotOnce => "moves not made once",
            Self::HitAgain => "hits counted twice within the retention",
            Self::WrongBoard => "players with a wrong number of hits",
            Self::ClaimedTwice => "ids claimed twice within the retention",
            Self::ForgottenEarly => "claims forgotten within the retention (I6)",
            Self::CommitLost => "acknowledged commits lost",
            Self::TwoClaims => "identities with two claims",
            Self::LostToken => "leases completed with a lost token",
            Self::CompletedTwice => "leased ids completed twice",
            Self::LetterLost => "hits without a letter",
            Self::LetterTwice => "hits with two letters",
            Self::StepLost => "committed steps not published",
            Self::StepOutOfOrder => "steps out of the order of their key",
            Self::PoisonNotOnce => "poison not among the dead letters once",
            Self::OtherReason => "dead letters with another reason",
            Self::MendedNotOnce => "requeued messages not handled once",
            Self::GivenUp => "messages given up that are not poison",
            Self::Parked => "effects parked",
            Self::UpdatedRow => "rows of inbox and outbox updated (I7)",
            Self::MaintenanceWait => "waits for a lock of the maintenance (I11)",
            Self::MaintenanceDeadlock => "deadlocks with the maintenance",
            Self::ServerCrashed => "processes of the servers that crashed",
            Self::NotRecovered => "faults after which a stream stood still",
            Self::ProcessEnded => "processes that ended by themselves",
            Self::NotDrained => "queues and effects left over",
        }
    }
}
