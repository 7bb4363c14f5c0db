//! What travels: commands to the targets, facts from them.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A message as the transport sees it: a body of bytes under an id.
#[derive(Clone, Debug)]
pub struct Message {
    /// The id by which consumers know it.
    pub id: Uuid,
    /// What the body holds.
    pub kind: Kind,
    /// What it is about: the attempt or the move. Faults are drawn by this, for ids may be random.
    pub subject: Uuid,
    /// The payload, JSON.
    pub body: Vec<u8>,
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A player fires.
    FireAt,
    /// A target moves.
    MoveTarget,
    /// A fact: the attempt hit.
    TargetHit,
    /// A fact: the attempt missed.
    TargetMissed,
}

impl Kind {
    /// The name that travels with effects.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FireAt => "FireAt",
            Self::MoveTarget => "MoveTarget",
            Self::TargetHit => "TargetHit",
            Self::TargetMissed => "TargetMissed",
        }
    }
}

/// A player fires at where the target was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FireAt {
    /// The business id: one attempt has one outcome.
    pub attempt: Uuid,
    /// Who fires.
    pub player: i32,
    /// At which target.
    pub target: i32,
    /// At which position.
    pub aim: i32,
}

/// A target moves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveTarget {
    /// The id of the move.
    pub order: Uuid,
    /// Which target.
    pub target: i32,
    /// Where to.
    pub position: i32,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Which attempt.
    pub attempt: Uuid,
    /// Whose.
    pub player: i32,
    /// At which target.
    pub target: i32,
    /// Where the player aimed.
    pub aim: i32,
    /// Where the target was.
    pub position: i32,
    /// Whether the two were the same.
    pub hit: bool,
}

impl Fact {
    /// The kind of the message that carries it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        if self.hit {
            Kind::TargetHit
        } else {
            Kind::TargetMissed
        }
    }

    /// The fact as a message under this id.
    pub fn message(&self, id: Uuid) -> Result<Message> {
        Ok(Message {
            id,
            kind: self.kind(),
            subject: self.attempt,
            body: serde_json::to_vec(self)?,
        })
    }

    /// The fact that a message or an effect carries, under the id that it has there.
    pub fn published(id: Uuid, body: Vec<u8>) -> Result<Message> {
        let fact: Self = serde_json::from_slice(&body)?;
        Ok(Message {
            id,
            kind: fact.kind(),
            subject: fact.attempt,
            body,
        })
    }
}
