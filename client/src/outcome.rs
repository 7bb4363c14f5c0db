//! What became of a claim.

use std::{ops::Deref, slice, vec};

use time::OffsetDateTime;

use crate::Claimed;

/// What became of a claim. `T` is what its winner gets: a [`Claimed`], or a whole transaction.
///
/// Not an [`Option`], because the compiler says nothing when somebody ignores one:
///
/// ```
/// # async fn handler(tx: &tokio_postgres::Transaction<'_>, id: idem_client::MessageId, destination: idem_client::Destination)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use idem_client::{Claim, try_claim};
///
/// let Claim::New(claimed) = try_claim(tx, &id, &destination).await? else {
///     return Ok(()); // a duplicate
/// };
/// # claimed.record_effects(&[]).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only a new message may be processed"]
pub enum Claim<T> {
    /// This transaction processes the message.
    New(T),
    /// It was processed before.
    Duplicate {
        /// When the first execution claimed it, where [`claim`](crate::claim()) has asked; `None`
        /// from the other calls.
        handled_at: Option<OffsetDateTime>,
    },
    /// Another transaction is processing it just now; only without waiting.
    InProgress,
    /// The identity is known with another fingerprint: two messages under one id.
    Mismatch {
        /// When the other one was claimed.
        handled_at: Option<OffsetDateTime>,
    },
    /// Sent so long ago that it can no longer be told from a duplicate.
    Expired,
}

impl<T> Claim<T> {
    /// The answer of the calls that say yes or no.
    pub(crate) fn new_if(won: bool, new: impl FnOnce() -> T) -> Self {
        if won {
            Self::New(new())
        } else {
            Self::Duplicate { handled_at: None }
        }
    }

    /// Whether this transaction processes the message.
    #[must_use]
    pub fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }

    /// Whether it was processed before.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate { .. })
    }

    /// What the winner gets; `None` for whoever is not.
    #[must_use]
    pub fn into_new(self) -> Option<T> {
        match self {
            Self::New(new) => Some(new),
            _ => None,
        }
    }
}

/// What became of the claims of a batch, by position. It derefs to a slice, and iterates.
#[derive(Debug)]
#[must_use = "only the new messages may be processed"]
pub struct Claims<'t>(pub(crate) Vec<Claim<Claimed<'t>>>);

impl<'t> Deref for Claims<'t> {
    type Target = [Claim<Claimed<'t>>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'t> IntoIterator for Claims<'t> {
    type Item = Claim<Claimed<'t>>;
    type IntoIter = vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'c, 't> IntoIterator for &'c Claims<'t> {
    type Item = &'c Claim<Claimed<'t>>;
    type IntoIter = slice::Iter<'c, Claim<Claimed<'t>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
