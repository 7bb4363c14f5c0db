//! The id of a message, checked before it travels.

use std::fmt;

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::{Error, sql};

/// The longest text id that the server takes, in bytes.
const LONGEST_BYTES: usize = 1024;

/// What a sender calls a message: its own message id or, better, a business id. Text or uuid.
///
/// To the server a text that is a canonical UUID *is* that uuid. This type does not look into a
/// text, so `==` on two `MessageId` compares what was written, not what the server makes of it.
///
/// ```
/// use idem_client::MessageId;
///
/// let by_text = MessageId::try_from("order-4711")?;
/// let by_uuid = MessageId::from(uuid::Uuid::nil());
/// assert_eq!(by_text.to_string(), "order-4711");
/// assert!(MessageId::try_from("").is_err());
/// # let _ = by_uuid;
/// # Ok::<(), idem_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Repr);

// Private, so that a text can only come in through its check.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Text(String),
    Uuid(Uuid),
}

impl MessageId {
    /// Takes a text id of 1 to 1,024 bytes without a zero byte, and [`Error::Invalid`] otherwise.
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
                "a message id must not contain a zero byte: PostgreSQL has no such texts".into(),
            ));
        }
        Ok(Self(Repr::Text(id)))
    }

    /// The value with its type: the type chooses between the overloads of the SQL functions.
    pub(crate) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match &self.0 {
            Repr::Text(id) => (id, Type::TEXT),
            Repr::Uuid(id) => (id, Type::UUID),
        }
    }

    /// The value as SQL, for a simple query. [`Error::Invalid`] for a text that no SQL can carry.
    pub(crate) fn literal(&self) -> Result<String, Error> {
        match &self.0 {
            Repr::Text(id) => Ok(format!("{}::text", sql::literal(id)?)),
            Repr::Uuid(id) => Ok(format!("'{id}'::uuid")),
        }
    }

    /// As the server takes it: a text that spells a uuid, hyphenated and in either case, is that
    /// uuid.
    #[cfg(feature = "runtime")]
    pub(crate) fn canonical(&self) -> Self {
        match &self.0 {
            // Other spellings of a uuid are texts to the server; they are shorter or longer.
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

impl TryFrom<&str> for MessageId {
    type Error = Error;

    fn try_from(id: &str) -> Result<Self, Error> {
        Self::text(id)
    }
}

impl TryFrom<String> for MessageId {
    type Error = Error;

    fn try_from(id: String) -> Result<Self, Error> {
        Self::text(id)
    }
}

/// The ids of one batch, as the one array that SQL wants.
pub(crate) enum IdArray {
    Text(Vec<String>),
    Uuid(Vec<Uuid>),
}

impl IdArray {
    /// Uuids stay uuids when all of them are. Mixed with texts they travel as text, which means the
    /// same to the server.
    pub(crate) fn new(ids: &[MessageId]) -> Self {
        match ids.iter().map(MessageId::as_uuid).collect() {
            Some(uuids) => Self::Uuid(uuids),
            None => Self::Text(ids.iter().map(MessageId::to_string).collect()),
        }
    }

    /// The function that claims such a batch.
    pub(crate) fn batch_function(&self) -> &'static str {
        match self {
            Self::Text(_) => "idem_try_claim_batch",
            Self::Uuid(_) => "idem_try_claim_uuid_batch",
        }
    }

    /// The value as SQL, for a simple query. [`Error::Invalid`] for a text that no SQL can carry.
    #[cfg(feature = "runtime")]
    pub(crate) fn literal(&self) -> Result<String, Error> {
        let (items, array) = match self {
            Self::Text(ids) => (
                ids.iter()
                    .map(|id| sql::literal(id))
                    .collect::<Result<Vec<_>, _>>()?,
                "text[]",
            ),
            Self::Uuid(ids) => (ids.iter().map(|id| format!("'{id}'")).collect(), "uuid[]"),
        };
        Ok(format!("ARRAY[{}]::{array}", items.join(",")))
    }

    pub(crate) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
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
    fn a_text_id_has_1_to_1024_bytes() {
        assert!(MessageId::text("").is_err());
        assert!(MessageId::text("x").is_ok());
        assert!(MessageId::text("x".repeat(1024)).is_ok());
        assert!(MessageId::text("x".repeat(1025)).is_err());
        // Bytes, not characters: 342 of three bytes each are 1,026.
        assert!(MessageId::text("€".repeat(342)).is_err());
    }

    #[test]
    fn the_type_of_an_id_chooses_the_overload() {
        assert_eq!(MessageId::text("a").unwrap().parameter().1, Type::TEXT);
        assert_eq!(MessageId::from(Uuid::nil()).parameter().1, Type::UUID);
    }

    #[test]
    fn a_mixed_batch_travels_as_text() {
        let uuid = MessageId::from(Uuid::nil());
        let text = MessageId::text("a").unwrap();
        assert_eq!(
            IdArray::new(std::slice::from_ref(&uuid)).parameter().1,
            Type::UUID_ARRAY
        );
        let IdArray::Text(mixed) = IdArray::new(&[uuid, text]) else {
            panic!("a text cannot travel in uuid[]");
        };
        assert_eq!(mixed, ["00000000-0000-0000-0000-000000000000", "a"]);
    }
}
