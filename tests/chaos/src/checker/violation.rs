//! The errors that a campaign checks for.
//!
//! A command is a shot, which has an attempt id, or a move of a target. The result of a shot is
//! published as a fact. The board counts the hits of the players, and a letter is written for each
//! hit. A step is a numbered message of a key.

use std::collections::BTreeMap;

use crate::named::named;

/// The count of each error.
pub type Errors = BTreeMap<Violation, u64>;

named! {
    /// One row of errors in the ledger.
    Violation {
        Lost = "commands or hits lost",
        HandledTwice = "commands handled twice within the retention",
        // An error of the campaign and not of idem.
        Late = "messages delivered again after the retention",
        Torn = "attempts with rows that differ from their fact",
        Contradiction = "attempts that hit and missed",
        OtherFact = "facts published with different ids or bytes",
        NotOneEffect = "claimed attempts without exactly one effect",
        MoveNotOnce = "moves not made exactly once",
        HitAgain = "hits counted twice within the retention",
        WrongBoard = "players with a wrong number of hits",
        ClaimedTwice = "ids claimed twice within the retention",
        ForgottenEarly = "claims forgotten within the retention (I6)",
        CommitLost = "acknowledged commits lost",
        TwoClaims = "identities with two claims",
        LostToken = "leases completed with an invalid token",
        CompletedTwice = "leased ids completed twice",
        LetterLost = "hits without a letter",
        LetterTwice = "hits with more than one letter",
        StepLost = "committed steps not published",
        StepOutOfOrder = "steps published out of order within their key",
        PoisonNotOnce = "poison messages without exactly one dead letter",
        OtherReason = "dead letters with a wrong error",
        MendedNotOnce = "requeued messages not handled exactly once",
        GivenUp = "dead letters of messages that are not poison",
        Parked = "effects parked",
        UpdatedRow = "rows of inbox and outbox updated (I7)",
        MaintenanceWait = "waits for a lock held by maintenance (I11)",
        MaintenanceDeadlock = "deadlocks that involve maintenance",
        // The signal was not sent by the campaign.
        ServerCrashed = "server processes that crashed",
        NotRecovered = "faults after which a stream did not continue",
        ProcessEnded = "processes that ended unexpectedly",
        NotDrained = "queues not empty and effects not published",
    }
}
