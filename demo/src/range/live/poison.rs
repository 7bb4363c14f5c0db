//! The payloads and the handler of poison messages. A handler cannot handle a poison message, or
//! cannot handle it before the message is repaired.

use anyhow::Result;
use idem_runtime::{Handled, HandlerError, Message, Tx};
use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;
use uuid::Uuid;

/// The kinds of poison messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Poison {
    /// The handler fails at each attempt.
    AlwaysFails,
    /// The handler returns a terminal error until the message is repaired. The repaired message is
    /// requeued.
    Repairable,
    /// The message type is unknown.
    UnknownType,
    /// The payload is not JSON.
    Unreadable,
    /// The message has no id.
    WithoutId,
}

/// The payload of all kinds except [`Poison::Unreadable`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Body {
    /// The id of the message, for the checker.
    pub poison: Uuid,
}

impl Poison {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::AlwaysFails,
        Self::Repairable,
        Self::UnknownType,
        Self::Unreadable,
        Self::WithoutId,
    ];

    /// Returns the message type.
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

    /// Returns a part of the error in the dead letter of such a message.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::AlwaysFails => "the handler always fails",
            Self::Repairable => "not repaired yet",
            Self::UnknownType => "unknown command",
            Self::Unreadable => "the payload is not the JSON that was expected",
            Self::WithoutId => "has no id",
        }
    }

    /// Returns the payload of a message of this kind.
    pub fn payload(self, id: Uuid) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Unreadable => format!("no JSON: {id}").into_bytes(),
            _ => serde_json::to_vec(&Body { poison: id })?,
        })
    }
}

/// Returns an error until the message is repaired. Afterwards, the handler records that the message
/// was handled.
pub async fn handle(tx: &Tx, message: &Message) -> Handled {
    if message.message_type() == Some(Poison::AlwaysFails.message_type()) {
        return Err("the handler always fails".into());
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
