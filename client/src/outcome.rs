//! The outcome of a claim: for users of this crate, and as the server returns it.

use time::OffsetDateTime;

use crate::Error;

/// The outcome of a claim. `T` is the value of a new claim: a [`Claimed`](crate::Claimed), or a
/// whole transaction.
///
/// The type is not an [`Option`], because the compiler does not warn about an ignored `Option`:
///
/// ```
/// # async fn handler(
/// #     tx: &tokio_postgres::Transaction<'_>,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use idem_client::{Claim, try_claim};
///
/// let Claim::New(claimed) = try_claim(tx, &id, &destination).await? else {
///     return Ok(()); // a duplicate
/// };
/// # claimed.record_effects(&[]).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "only a new message may be processed"]
pub enum Claim<T> {
    /// This transaction has claimed the message and processes it.
    New(T),
    /// The message was processed before.
    Duplicate {
        /// The time at which the first execution claimed the message. Only
        /// [`claim`](crate::claim()) returns this time; the other functions return `None`.
        handled_at: Option<OffsetDateTime>,
    },
    /// Another transaction is processing the message. Only a claim that does not wait returns this.
    InProgress,
    /// The identity was claimed with another fingerprint: two messages have the same id.
    Mismatch {
        /// When the other message was claimed.
        handled_at: Option<OffsetDateTime>,
    },
    /// The message was sent too long ago to be distinguished from a duplicate.
    Expired,
}

impl<T> Claim<T> {
    /// Converts the boolean result of a claim: `New` if it is true, and otherwise `Duplicate`.
    pub(crate) fn new_if(won: bool, new: impl FnOnce() -> T) -> Self {
        if won {
            Self::New(new())
        } else {
            Self::Duplicate { handled_at: None }
        }
    }

    /// Returns whether this transaction processes the message.
    #[must_use]
    pub fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }

    /// Returns whether the message was processed before.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate { .. })
    }

    /// Returns the value of a new claim; `None` for any other outcome.
    #[must_use]
    pub fn into_new(self) -> Option<T> {
        match self {
            Self::New(new) => Some(new),
            _ => None,
        }
    }
}

/// The outcome of a claim, as the server returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// This transaction has claimed the message.
    Claimed,
    /// The message was processed before.
    Duplicate,
    /// Another transaction is claiming the message, or its lease is held.
    InProgress,
    /// The message was processed before with another content.
    Mismatch,
    /// The message was sent before the start of the retained period.
    Expired,
}

impl ClaimOutcome {
    /// Parses the result of a claim: the text of a boolean, or of an `idem_outcome`.
    pub fn parse(value: Option<&str>) -> Result<Self, Error> {
        match value {
            Some("t" | "claimed") => Ok(Self::Claimed),
            Some("f" | "duplicate") => Ok(Self::Duplicate),
            Some("in_progress") => Ok(Self::InProgress),
            Some("mismatch") => Ok(Self::Mismatch),
            Some("expired") => Ok(Self::Expired),
            other => Err(Error::Unexpected(format!("a claim returned {other:?}"))),
        }
    }

    /// Returns the text of the `idem_outcome`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Duplicate => "duplicate",
            Self::InProgress => "in_progress",
            Self::Mismatch => "mismatch",
            Self::Expired => "expired",
        }
    }
}
