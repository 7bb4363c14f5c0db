//! The observer, which receives and keeps every fact that is published.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use super::message::{Kind, Message};

/// The log of all published facts.
#[derive(Default)]
pub struct Observer {
    heard: Mutex<BTreeMap<Uuid, Vec<Published>>>,
}

/// A fact as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub message_id: Uuid,
    /// Whether the attempt hit, according to this fact.
    pub hit: bool,
    /// The bytes of the payload.
    pub payload: Vec<u8>,
}

impl Published {
    /// Returns a fact as the observer keeps it.
    #[must_use]
    pub fn of(fact: Message) -> Self {
        Self {
            message_id: fact.id,
            hit: fact.kind == Kind::TargetHit,
            payload: fact.body,
        }
    }
}

impl Observer {
    /// Adds a fact to the log.
    pub fn hear(&self, fact: &Message) {
        self.heard()
            .entry(fact.subject)
            .or_default()
            .push(Published::of(fact.clone()));
    }

    /// Returns the facts about each attempt, in the order of publication.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<Uuid, Vec<Published>> {
        self.heard().clone()
    }

    /// Returns the number of attempts with a published fact.
    #[must_use]
    pub fn attempts(&self) -> usize {
        self.heard().len()
    }

    /// Returns the number of attempts that both hit and missed according to their facts.
    #[must_use]
    pub fn contradictions(&self) -> usize {
        self.heard()
            .values()
            .filter(|facts| contradict(facts))
            .count()
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<Uuid, Vec<Published>>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether these facts about one attempt contain both a hit and a miss.
#[must_use]
pub fn contradict(facts: &[Published]) -> bool {
    facts
        .first()
        .is_some_and(|first| facts.iter().any(|fact| fact.hit != first.hit))
}
