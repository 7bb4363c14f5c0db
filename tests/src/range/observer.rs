//! Someone who hears every fact that is ever published, and forgets none.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use super::message::{Kind, Message};

/// The log of facts.
#[derive(Default)]
pub struct Observer {
    heard: Mutex<BTreeMap<Uuid, Vec<Published>>>,
}

/// A fact as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The id that it was published under.
    pub message_id: Uuid,
    /// What it says.
    pub hit: bool,
    /// Byte for byte.
    pub payload: Vec<u8>,
}

impl Observer {
    /// Notes a fact.
    pub fn hear(&self, fact: &Message) {
        self.heard()
            .entry(fact.subject)
            .or_default()
            .push(Published {
                message_id: fact.id,
                hit: fact.kind == Kind::TargetHit,
                payload: fact.body.clone(),
            });
    }

    /// Everything that was heard about each attempt, in the order of publication.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<Uuid, Vec<Published>> {
        self.heard().clone()
    }

    /// How many attempts are said to have both hit and missed.
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

/// Whether these facts about one attempt say both.
#[must_use]
pub fn contradict(facts: &[Published]) -> bool {
    facts
        .first()
        .is_some_and(|first| facts.iter().any(|fact| fact.hit != first.hit))
}
