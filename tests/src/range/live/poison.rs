//! Messages that no handler can handle, or not yet: what they look like, and what the handler does
//! with them.

use anyhow::Result;
use idem_client::{Handled, HandlerError, Message, Tx};
use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;
use uuid::Uuid;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Poison {
    /// The handler fails at each attempt.
    AlwaysFails,
    /// The handler fails for good until the message is repaired, and is requeued then.
    Repairable,
    /// There is no such command.
    UnknownType,
    /// The payload is no JSON.
    Unreadable,
    /// The message has no id.
    WithoutId,
}

/// The payload of all but the unreadable ones.
#[derive(Debug, Serialize, Deserialize)]
pub struct Body {
    /// By which the checker knows the message.
    pub poison: Uuid,
}

impl Poison {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::AlwaysFails,
        Self::Repairable,
        Self::UnknownType,
        Self::Unreadable,
        Self::WithoutId,
    ];

    /// The type that the message has.
    #[must_use]
    pub fn message_type(self) -> &'static str {
        match self {
            Self::AlwaysFails => "AlwaysFails",
            Self::Repairable => "Repairable",
            Self::UnknownType => "UnknownType",
            Self::Unreadable => "MoveTarget",
            Self::WithoutId => "FireAt",
        }
    }

    /// A part of the reason in its dead letter.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::AlwaysFails => "the handler fails always",
            Self::Repairable => "not repaired yet",
            Self::UnknownType => "no command",
            Self::Unreadable => "the payload is not the JSON that was expected",
            Self::WithoutId => "has no id",
        }
    }

    /// The payload of a message of this kind.
    pub fn payload(self, id: Uuid) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Unreadable => format!("no JSON: {id}").into_bytes(),
            _ => serde_json::to_vec(&Body { poison: id })?,
        })
    }
}

/// Fails until the message is repaired, and notes then that it was handled.
pub async fn handle(tx: &Tx, message: &Message) -> Handled {
    if message.message_type() == Some(Poison::AlwaysFails.message_type()) {
        return Err("the handler fails always".into());
    }
    let Body { poison } = message.json()?;
    let mended = tx
        .execute_typed(
            "INSERT INTO mended (poison) SELECT poison FROM repaired WHERE poison = $1",
            &[(&poison, Type::UUID)],
        )
        .await?;
    match mended {
        0 => Err(HandlerError::terminal("not repaired yet")),
        _ => Ok(vec![]),
    }
}
