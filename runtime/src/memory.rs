//! The messages that this process has handled, kept in memory.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_client::{Destination, MessageId};
use moka::{policy::EvictionPolicy, sync::Cache};
use tokio::sync::{Mutex as Turns, OwnedMutexGuard};

/// The identity of a message: its destination and its id. Two identities are equal if the server
/// treats them as equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity(Destination, MessageId);

impl Identity {
    pub(crate) fn new(destination: &Destination, id: &MessageId) -> Self {
        Self(destination.clone(), id.canonical())
    }
}

/// The store of [`Store::Memory`](crate::policy::Store::Memory): the messages that were handled,
/// and the messages that are being handled.
#[derive(Clone)]
pub(crate) struct Memory {
    /// The messages that were handled: a bounded number, each for a limited time.
    known: Cache<Identity, ()>,
    /// The messages that are being handled. They are not in the cache, which can evict any entry.
    seats: Arc<Mutex<HashMap<Identity, Seat>>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory")
            .field(&self.known.entry_count())
            .finish()
    }
}

/// The queue of the tasks for one message.
#[derive(Debug, Default)]
struct Seat {
    holders: usize,
    turns: Arc<Turns<()>>,
}

/// The result of [`Memory::enter`].
pub(crate) enum Entered {
    /// The message is new. Handle it, and call [`Turn::handled`] after success.
    New(Turn),
    /// The message was handled before.
    Duplicate,
    /// Another task is handling the message.
    InProgress,
}

impl Memory {
    pub(crate) fn new(capacity: u64, ttl: Duration) -> Self {
        let known = Cache::builder()
            .max_capacity(capacity)
            .time_to_live(ttl)
            // The default policy of moka adds an entry to a full cache only if it was looked up
            // before. Most messages are delivered once, so they would not be added.
            .eviction_policy(EvictionPolicy::lru());
        Self {
            known: known.build(),
            seats: Arc::default(),
        }
    }

    fn is_known(&self, identity: &Identity) -> bool {
        // `get` marks the entry as recently used. `contains_key` does not.
        self.known.get(identity).is_some()
    }

    /// Requests the turn to handle a message. With `wait`, waits until all earlier tasks for the
    /// message have succeeded, failed or been dropped.
    pub(crate) async fn enter(&self, identity: Identity, wait: bool) -> Entered {
        if self.is_known(&identity) {
            return Entered::Duplicate;
        }
        let place = Place::new(self, identity);
        let turns = Arc::clone(&place.turns);
        let guard = if wait {
            turns.lock_owned().await
        } else {
            match turns.try_lock_owned() {
                Ok(guard) => guard,
                Err(_) => return Entered::InProgress,
            }
        };
        // The task that had the turn before may have handled the message.
        if self.is_known(&place.identity) {
            return Entered::Duplicate;
        }
        Entered::New(Turn {
            _guard: guard,
            place,
        })
    }
}

/// The turn to handle a message. If it is dropped without [`handled`](Self::handled), the next task
/// gets the turn.
pub(crate) struct Turn {
    // This field is dropped before `place`: a task must end its turn before it leaves the seat.
    _guard: OwnedMutexGuard<()>,
    place: Place,
}

impl Turn {
    /// Records that the message took effect. Its later deliveries are duplicates.
    pub(crate) fn handled(self) {
        let Place {
            memory, identity, ..
        } = &self.place;
        memory.known.insert(identity.clone(), ());
    }
}

/// A place in the queue of a message, for a task that has a turn or waits for a turn. The seat of
/// the message is removed with its last place.
struct Place {
    memory: Memory,
    identity: Identity,
    turns: Arc<Turns<()>>,
}

impl Place {
    fn new(memory: &Memory, identity: Identity) -> Self {
        let mut seats = lock(&memory.seats);
        let seat = seats.entry(identity.clone()).or_default();
        seat.holders += 1;
        let turns = Arc::clone(&seat.turns);
        drop(seats);
        Self {
            memory: memory.clone(),
            identity,
            turns,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = lock(&self.memory.seats);
        if let Some(seat) = seats.get_mut(&self.identity) {
            seat.holders -= 1;
            if seat.holders == 0 {
                seats.remove(&self.identity);
            }
        }
    }
}

/// Ignores poisoning, because no panic can leave the seats half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use futures_util::{FutureExt, poll};
    use uuid::Uuid;

    use super::*;

    fn identity(id: &str) -> Identity {
        Identity::new(
            &Destination::new("d").unwrap(),
            &MessageId::text(id).unwrap(),
        )
    }

    fn memory() -> Memory {
        Memory::new(100, Duration::from_secs(60))
    }

    /// Returns the turn, which must be available at once.
    fn turn(entering: impl Future<Output = Entered>) -> Turn {
        match entering.now_or_never() {
            Some(Entered::New(turn)) => turn,
            _ => panic!("the turn is not available"),
        }
    }

    #[tokio::test]
    async fn dropped_delivery_leaves_no_seat() {
        let memory = memory();
        let first = turn(memory.enter(identity("a"), true));
        {
            let mut second = Box::pin(memory.enter(identity("a"), true));
            assert!(poll!(second.as_mut()).is_pending());
        }
        assert!(matches!(
            memory.enter(identity("a"), false).await,
            Entered::InProgress
        ));
        drop(first);
        turn(memory.enter(identity("a"), true)).handled();
        assert!(matches!(
            memory.enter(identity("a"), true).await,
            Entered::Duplicate
        ));
        assert!(lock(&memory.seats).is_empty());
    }

    #[test]
    fn text_that_spells_a_uuid_is_that_uuid() {
        let uuid = Uuid::from_u128(0xabc);
        let destination = Destination::new("d").unwrap();
        let by_uuid = Identity::new(&destination, &uuid.into());
        assert_eq!(identity(&uuid.to_string()), by_uuid);
        assert_eq!(identity(&uuid.to_string().to_uppercase()), by_uuid);
        assert_ne!(identity(&uuid.simple().to_string()), by_uuid);
    }
}
