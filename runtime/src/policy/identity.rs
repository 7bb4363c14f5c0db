//! Where the id of a message comes from.

use std::{fmt, sync::Arc};

use idem_client::MessageId;

use crate::{Error, Message, policy::pointer};

/// A function that returns the id of a message; `None` if the message has no id.
pub type IdFunction = Arc<dyn Fn(&Message) -> Option<MessageId> + Send + Sync>;

/// Where the id of a message comes from.
///
/// An empty text is not an id.
#[derive(Clone)]
#[non_exhaustive]
pub enum IdStrategy {
    /// The sender's message id.
    MessageId,
    /// The correlation id.
    CorrelationId,
    /// A header.
    Header(String),
    /// A member of a JSON payload, by its JSON pointer (RFC 6901), such as `/order/id`: a business
    /// id.
    ///
    /// A string is used unchanged, and an integer of any length by its digits, so `"7"` and `7` are
    /// the same id. `null` is no id. A number with a point or an exponent has several spellings of
    /// one value, so it is rejected with [`Error::Invalid`], and so are `-0`, booleans, arrays and
    /// objects. A payload that is not JSON fails with [`Error::Decode`].
    Payload(String),
    /// Topic, partition and offset: the position of the message at its broker.
    ///
    /// Identifies redeliveries, but not a message that was sent twice. If a topic is deleted and
    /// created again, its offsets begin at 0 again, so its new messages would be treated as
    /// duplicates.
    Coordinates,
    /// Several strategies, each of which must return an id.
    ///
    /// The parts are joined by `:`, and a `:` or `\` within a part is preceded by a `\`, so that
    /// different parts never result in the same id. The joined id has at most 1,024 bytes, like any
    /// id.
    Composite(Vec<IdStrategy>),
    /// A function of the message.
    Function(IdFunction),
}

impl IdStrategy {
    /// Creates a strategy from a function, for example for a payload that is not JSON.
    pub fn function(
        function: impl Fn(&Message) -> Option<MessageId> + Send + Sync + 'static,
    ) -> Self {
        Self::Function(Arc::new(function))
    }

    /// Returns the id of a message; `None` if it has no id.
    ///
    /// Fails with [`Error::Invalid`] if the value cannot be an id, for example because it has more
    /// than 1,024 bytes.
    pub fn id_of(&self, message: &Message) -> Result<Option<MessageId>, Error> {
        match self {
            Self::Function(function) => Ok(function(message)),
            _ => Ok(self.text_of(message)?.map(MessageId::text).transpose()?),
        }
    }

    fn text_of(&self, message: &Message) -> Result<Option<String>, Error> {
        let text = match self {
            Self::MessageId => message.message_id().map(str::to_owned),
            Self::CorrelationId => message.correlation_id().map(str::to_owned),
            Self::Header(name) => message.header(name).map(str::to_owned),
            Self::Payload(path) => pointer::text_at(message.payload(), path)?,
            Self::Coordinates => message
                .coordinates()
                .map(|at| joined([&at.topic, &at.partition.to_string(), &at.offset.to_string()])),
            Self::Composite(parts) => parts
                .iter()
                .map(|part| part.text_of(message))
                .collect::<Result<Option<Vec<_>>, _>>()?
                .map(joined),
            Self::Function(function) => function(message).map(|id| id.to_string()),
        };
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// Returns an error if the strategy can never return an id.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Header(name) if name.is_empty() => {
                Err("the header that the id comes from has no name".into())
            }
            Self::Payload(path) => pointer::check(path),
            Self::Composite(parts) if parts.is_empty() => Err("a composite id has no parts".into()),
            Self::Composite(parts) => parts.iter().try_for_each(Self::check),
            _ => Ok(()),
        }
    }
}

/// Joins several texts into one text. The parts can be read again from the result, so different
/// parts never have the same result.
fn joined<T: AsRef<str>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut all = String::new();
    for (n, part) in parts.into_iter().enumerate() {
        if n > 0 {
            all.push(':');
        }
        for c in part.as_ref().chars() {
            if matches!(c, ':' | '\\') {
                all.push('\\');
            }
            all.push(c);
        }
    }
    all
}

impl fmt::Debug for IdStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text for an error message.
impl fmt::Display for IdStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MessageId => f.write_str("the message id"),
            Self::CorrelationId => f.write_str("the correlation id"),
            Self::Header(name) => write!(f, "the header {name}"),
            Self::Payload(pointer) => write!(f, "{pointer} of the payload"),
            Self::Coordinates => f.write_str("the broker's coordinates"),
            Self::Composite(parts) => {
                for (n, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if n > 0 { " and " } else { "" })?;
                }
                Ok(())
            }
            Self::Function(_) => f.write_str("the result of a function"),
        }
    }
}

/// What to do with a message that has no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingId {
    /// Reject it with [`Error::MissingId`].
    Reject,
    /// Process it without a claim, and log a warning. A duplicate of the message takes effect
    /// again.
    Unprotected,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::transport::Coordinates;

    fn message() -> Message {
        Message::new("orders", r#"{"order": {"id": 4711, "parts": ["a"]}}"#)
            .with_message_id("m-1")
            .with_correlation_id("c-1")
            .with_header("x-step", "reserve")
    }

    fn id(strategy: &IdStrategy, message: &Message) -> Option<String> {
        strategy.id_of(message).unwrap().map(|id| id.to_string())
    }

    fn header(name: &str) -> IdStrategy {
        IdStrategy::Header(name.into())
    }

    #[test]
    fn strategy_selects_the_id() {
        let message = message().with_coordinates(Coordinates::new("orders", 3, 42));
        let composite = IdStrategy::Composite(vec![IdStrategy::CorrelationId, header("x-step")]);
        let function = IdStrategy::function(|message| {
            Some(MessageId::from(Uuid::from_u128(
                message.payload().len() as u128
            )))
        });
        for (strategy, expected) in [
            (IdStrategy::MessageId, "m-1"),
            (IdStrategy::CorrelationId, "c-1"),
            (header("x-step"), "reserve"),
            (IdStrategy::Payload("/order/id".into()), "4711"),
            (IdStrategy::Payload("/order/parts/0".into()), "a"),
            (IdStrategy::Coordinates, "orders:3:42"),
            (composite, "c-1:reserve"),
            (function, "00000000-0000-0000-0000-000000000027"),
        ] {
            assert_eq!(
                id(&strategy, &message).as_deref(),
                Some(expected),
                "{strategy:?}"
            );
        }
    }

    #[test]
    fn missing_or_empty_value_is_no_id() {
        let bare = Message::new("orders", "{}")
            .with_message_id("")
            .with_header("x-step", "");
        for strategy in [
            IdStrategy::MessageId,
            IdStrategy::CorrelationId,
            header("x-step"),
            header("x-other"),
            IdStrategy::Payload("/order/id".into()),
            IdStrategy::Coordinates,
            IdStrategy::function(|_| None),
        ] {
            assert_eq!(id(&strategy, &bare), None, "{strategy:?}");
        }
    }

    #[test]
    fn composite_needs_all_its_parts() {
        let all = IdStrategy::Composite(vec![IdStrategy::MessageId, header("x-step")]);
        assert!(id(&all, &message()).is_some());
        let one_is_missing = IdStrategy::Composite(vec![IdStrategy::MessageId, header("x-other")]);
        assert_eq!(id(&one_is_missing, &message()), None);
    }

    #[test]
    fn id_of_more_than_1024_bytes_is_rejected() {
        let long = Message::new("orders", "").with_message_id("x".repeat(1025));
        assert!(matches!(
            IdStrategy::MessageId.id_of(&long),
            Err(Error::Invalid(_))
        ));
        let halves = Message::new("orders", "")
            .with_message_id("x".repeat(600))
            .with_correlation_id("y".repeat(600));
        let both = IdStrategy::Composite(vec![IdStrategy::MessageId, IdStrategy::CorrelationId]);
        assert!(matches!(both.id_of(&halves), Err(Error::Invalid(_))));
    }

    /// Splits a composite into its parts. If the result equals the original parts, no other parts
    /// have the same composite.
    fn parts_of(composite: &str) -> Vec<String> {
        let (mut parts, mut chars) = (vec![String::new()], composite.chars());
        while let Some(c) = chars.next() {
            match c {
                ':' => parts.push(String::new()),
                '\\' => parts.last_mut().unwrap().extend(chars.next()),
                c => parts.last_mut().unwrap().push(c),
            }
        }
        parts
    }

    proptest! {
        #[test]
        fn parts_can_be_read_from_the_composite(
            parts in prop::collection::vec(r"[ab:\\]{1,4}", 1..4),
        ) {
            prop_assert_eq!(parts_of(&joined(&parts)), parts);
        }

        #[test]
        fn composite_within_a_composite_is_one_part(
            one in prop::collection::vec(r"[a:\\]{1,2}", 3),
        ) {
            let [a, b, c] = &one[..] else { unreachable!() };
            prop_assert_ne!(joined([a, &joined([b, c])]), joined([&joined([a, b]), c]));
        }
    }
}
