//! Looks a message up in the memory of this process before it is processed, and remembers it after
//! that.

use super::{settings::Settings, task::Ready};
use crate::{
    Processed,
    memory::{Entered, Identity, Known},
    policy::OnDuplicate,
};

/// Looks the message up in the memory of this process. Returns the outcome of a message that must
/// not be processed now.
///
/// With [`Store::Memory`](crate::policy::Store::Memory) the memory decides whether the message is
/// new. It gives a new message a turn, and nothing is claimed in the database.
pub(super) async fn recall(settings: &Settings, ready: &mut Ready) -> Option<Processed> {
    if let Some(memory) = &ready.entry.memory {
        return match memory.enter(ready.identity()?, ready.policy().wait).await {
            Entered::Duplicate => Some(Processed::duplicate()),
            Entered::InProgress => Some(Processed::InProgress),
            Entered::New(turn) => {
                (ready.id, ready.turn) = (None, Some(turn));
                None
            }
        };
    }
    let (known, identity) = known(settings, ready)?;
    known.contains(&identity).then(Processed::duplicate)
}

/// Remembers a message whose transaction is committed. Returns its outcome.
pub(super) fn remember(settings: &Settings, ready: &mut Ready, processed: Processed) -> Processed {
    let processed = match processed {
        // The message has no claim in the database, but the memory of this process detects its
        // duplicates.
        Processed::Unprotected { effects } if ready.turn.is_some() => Processed::New { effects },
        processed => processed,
    };
    if let Some((known, identity)) = known(settings, ready) {
        match &processed {
            Processed::New { .. } | Processed::Duplicate { .. } => known.insert(identity),
            _ => {}
        }
    }
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

/// Returns the memory of duplicates and the identity of this message, if the policy allows the use
/// of the memory.
fn known<'s>(settings: &'s Settings, ready: &Ready) -> Option<(&'s Known, Identity)> {
    let policy = ready.policy();
    let asks_database =
        policy.on_duplicate == OnDuplicate::Effects || policy.fingerprint || policy.expire;
    match &settings.known {
        Some(known) if !asks_database => Some((known, ready.identity()?)),
        _ => None,
    }
}
