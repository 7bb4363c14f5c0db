//! Looks a message up in the memory of this process before it is processed, and remembers it after
//! that: for destinations with [`Store::Memory`](crate::policy::Store::Memory).

use super::task::Ready;
use crate::{
    Processed,
    memory::{Entered, Identity},
};

/// Looks the message up in the memory of this process, which decides whether the message is new.
/// Returns the outcome of a message that must not be processed now.
///
/// A new message gets a turn, and nothing is claimed in the database.
pub(super) async fn recall(ready: &mut Ready) -> Option<Processed> {
    let memory = ready.entry.memory.as_ref()?;
    let identity = Identity::new(&ready.destination, ready.id.as_ref()?);
    match memory.enter(identity, ready.policy().wait).await {
        Entered::Duplicate => Some(Processed::duplicate()),
        Entered::InProgress => Some(Processed::InProgress),
        Entered::New(turn) => {
            (ready.id, ready.turn) = (None, Some(turn));
            None
        }
    }
}

/// Remembers a message whose transaction is committed. Returns its outcome.
pub(super) fn remember(ready: &mut Ready, processed: Processed) -> Processed {
    let processed = match processed {
        // The message has no claim in the database, but the memory of this process detects its
        // duplicates.
        Processed::Unprotected { effects } if ready.turn.is_some() => Processed::New { effects },
        processed => processed,
    };
    if let (Processed::New { .. }, Some(stored), Some(id)) =
        (&processed, ready.message.stored(), &ready.id)
    {
        stored.note_claimed(&ready.destination, id);
    }
    if let (Some(turn), Processed::New { .. }) = (ready.turn.take(), &processed) {
        turn.handled();
    }
    processed
}
