//! The messages: commands to the targets, and facts from them.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A message as the transport sees it: an id and a payload of bytes.
#[derive(Clone, Debug)]
pub struct Message {
    /// The message id.
    pub id: Uuid,
    /// The kind of the payload.
    pub kind: Kind,
    /// The id of the attempt or of the move. Faults are drawn from this id, because message ids may
    /// be random.
    pub subject: Uuid,
    /// The payload, in JSON.
    pub body: Vec<u8>,
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A command: a player fires at a target.
    FireAt,
    /// A command: a target moves.
    MoveTarget,
    /// A fact: the attempt hit the target.
    TargetHit,
    /// A fact: the attempt missed the target.
    TargetMissed,
}

impl Kind {
    /// Returns the message type of this kind.
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

/// The command to fire at the last known position of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FireAt {
    /// The business id. One attempt has one result.
    pub attempt: Uuid,
    pub player: i32,
    pub target: i32,
    /// The position that the player aims at.
    pub aim: i32,
}

/// The command that moves a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveTarget {
    /// The id of the move.
    pub order: Uuid,
    pub target: i32,
    /// The new position.
    pub position: i32,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    pub attempt: Uuid,
    pub player: i32,
    pub target: i32,
    /// The position that the player aimed at.
    pub aim: i32,
    /// The position of the target when the command was processed.
    pub position: i32,
    /// Whether the two positions are the same.
    pub hit: bool,
}

impl Fact {
    /// Returns the kind of a message with this fact.
    #[must_use]
    pub fn kind(&self) -> Kind {
        if self.hit {
            Kind::TargetHit
        } else {
            Kind::TargetMissed
        }
    }

    /// Returns the fact as a message with this id.
    pub fn message(&self, id: Uuid) -> Result<Message> {
        Ok(Message {
            id,
            kind: self.kind(),
            subject: self.attempt,
            body: serde_json::to_vec(self)?,
        })
    }

    /// Returns a message with this id and payload. The payload is a fact that was published.
    ///
    /// Returns an error when the payload is not the JSON of a fact.
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
