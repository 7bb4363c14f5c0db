//! The id of a message, checked before it is sent to the server.

use std::fmt;

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::{Error, escape};

/// The longest text id, in bytes, that the server accepts.
const LONGEST_BYTES: usize = 1024;

/// The id of a message: the sender's message id or, better, a business id. A text or a UUID.
///
/// The server treats a text that is a canonical UUID as that UUID. This type does not interpret a
/// text, so `==` compares two ids as they were written.
///
/// ```
/// use idem_client::MessageId;
///
/// let by_text = MessageId::text("order-4711")?;
/// let by_uuid = MessageId::from(uuid::Uuid::nil());
/// assert_eq!(by_text.to_string(), "order-4711");
/// assert!(MessageId::text("").is_err());
/// # let _ = by_uuid;
/// # Ok::<(), idem_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Repr);

// This type is private, so that every text passes the check in `MessageId::text`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Text(String),
    Uuid(Uuid),
}

impl MessageId {
    /// Creates an id from a text of 1 to 1,024 bytes without a zero byte.
    ///
    /// Fails with [`Error::Invalid`] for any other text.
    pub fn text(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        if id.is_empty() {
            return Err(Error::Invalid("a message id must not be empty".into()));
        }
        if id.len() > LONGEST_BYTES {
            return Err(Error::Invalid(format!(
                "a message id has at most {LONGEST_BYTES} bytes, this one has {}",
                id.len()
            )));
        }
        if id.contains('\0') {
            return Err(Error::Invalid(
                "a message id must not contain a zero byte, which PostgreSQL cannot store".into(),
            ));
        }
        Ok(Self(Repr::Text(id)))
    }

    /// Returns the value with its type. The type selects the overload of the SQL function.
    pub fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match &self.0 {
            Repr::Text(id) => (id, Type::TEXT),
            Repr::Uuid(id) => (id, Type::UUID),
        }
    }

    /// Returns the value as a SQL literal, for a simple query. Fails with [`Error::Invalid`] if the
    /// text contains a zero byte.
    pub fn literal(&self) -> Result<String, Error> {
        match &self.0 {
            Repr::Text(id) => Ok(format!("{}::text", escape::literal(id)?)),
            Repr::Uuid(id) => Ok(format!("'{id}'::uuid")),
        }
    }

    /// Returns the id as the server interprets it: a text that is a hyphenated UUID, in upper or
    /// lower case, is that UUID.
    pub fn canonical(&self) -> Self {
        match &self.0 {
            // Other spellings of a UUID have fewer or more characters. The server treats them as
            // texts.
            Repr::Text(text) if text.len() == 36 => {
                Uuid::try_parse(text).map_or_else(|_| self.clone(), Self::from)
            }
            _ => self.clone(),
        }
    }

    fn as_uuid(&self) -> Option<Uuid> {
        match self.0 {
            Repr::Uuid(id) => Some(id),
            Repr::Text(_) => None,
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Text(id) => f.write_str(id),
            Repr::Uuid(id) => id.fmt(f),
        }
    }
}

impl From<Uuid> for MessageId {
    fn from(id: Uuid) -> Self {
        Self(Repr::Uuid(id))
    }
}

/// The ids of one batch, as one SQL array.
pub enum IdArray {
    /// The ids as texts.
    Text(Vec<String>),
    /// The ids as UUIDs.
    Uuid(Vec<Uuid>),
}

impl IdArray {
    /// Keeps UUIDs if all ids are UUIDs. Otherwise all ids are sent as texts, which the server
    /// treats as the same ids.
    pub fn new(ids: &[MessageId]) -> Self {
        match ids.iter().map(MessageId::as_uuid).collect() {
            Some(uuids) => Self::Uuid(uuids),
            None => Self::Text(ids.iter().map(MessageId::to_string).collect()),
        }
    }

    /// Returns the name of the function that claims such a batch.
    pub fn batch_function(&self) -> &'static str {
        match self {
            Self::Text(_) => "idem_try_claim_batch",
            Self::Uuid(_) => "idem_try_claim_uuid_batch",
        }
    }

    /// Returns the value as a SQL literal, for a simple query. Fails with [`Error::Invalid`] if a
    /// text contains a zero byte.
    pub fn literal(&self) -> Result<String, Error> {
        let (items, array) = match self {
            Self::Text(ids) => (
                ids.iter()
                    .map(|id| escape::literal(id))
                    .collect::<Result<Vec<_>, _>>()?,
                "text[]",
            ),
            Self::Uuid(ids) => (ids.iter().map(|id| format!("'{id}'")).collect(), "uuid[]"),
        };
        Ok(format!("ARRAY[{}]::{array}", items.join(",")))
    }

    /// Returns the value as a parameter, with its type.
    pub fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Text(ids) => (ids, Type::TEXT_ARRAY),
            Self::Uuid(ids) => (ids, Type::UUID_ARRAY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_id_has_1_to_1024_bytes() {
        assert!(MessageId::text("").is_err());
        assert!(MessageId::text("x").is_ok());
        assert!(MessageId::text("x".repeat(1024)).is_ok());
        assert!(MessageId::text("x".repeat(1025)).is_err());
        // The limit is in bytes, not characters: 342 characters of three bytes each are 1,026
        // bytes.
        assert!(MessageId::text("€".repeat(342)).is_err());
    }

    #[test]
    fn type_of_an_id_selects_the_overload() {
        assert_eq!(MessageId::text("a").unwrap().parameter().1, Type::TEXT);
        assert_eq!(MessageId::from(Uuid::nil()).parameter().1, Type::UUID);
    }

    #[test]
    fn mixed_batch_is_sent_as_text() {
        let uuid = MessageId::from(Uuid::nil());
        let text = MessageId::text("a").unwrap();
        assert_eq!(
            IdArray::new(std::slice::from_ref(&uuid)).parameter().1,
            Type::UUID_ARRAY
        );
        let IdArray::Text(mixed) = IdArray::new(&[uuid, text]) else {
            panic!("a text cannot be sent as uuid[]");
        };
        assert_eq!(mixed, ["00000000-0000-0000-0000-000000000000", "a"]);
    }
}
