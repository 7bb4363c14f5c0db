//! What to do about a call that nobody has heard of.

use std::{fmt, future::Future};

use futures_util::{FutureExt, future::BoxFuture};
use time::OffsetDateTime;

use super::CallError;

/// An earlier attempt began a call and never ended it: it was killed, or it heard no answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Unheard {
    /// Under which it was asked, if it was.
    pub idempotency_key: String,
    /// The how manyth attempt this one is, from 2.
    pub attempt: i32,
    /// When the first one began that was never heard of.
    pub begun_at: Option<OffsetDateTime>,
}

/// What to do about a call that an earlier attempt began and never heard of.
pub enum OnUnknown<'q, T> {
    /// Ask the other side, or somebody else, whether it was done: see [`OnUnknown::query`].
    Query(Query<'q, T>),
    /// Ask again under the same key: for another side that honours keys, or work that may be done
    /// twice.
    Repeat,
    /// Ask nobody: [`CallFailed::Unknown`](super::CallFailed::Unknown), which is terminal.
    Fail,
}

/// What looks whether a call was done.
pub type Query<'q, T> =
    Box<dyn FnOnce(Unheard) -> BoxFuture<'q, Result<Option<T>, CallError>> + Send + 'q>;

impl<'q, T> OnUnknown<'q, T> {
    /// Finds out: `Some` is the answer, and is recorded; `None` says that it was not done, and it
    /// is asked. An error leaves it unknown, unless it says otherwise.
    pub fn query<F, Fut, E>(query: F) -> Self
    where
        F: FnOnce(Unheard) -> Fut + Send + 'q,
        Fut: Future<Output = Result<Option<T>, E>> + Send + 'q,
        E: Into<CallError>,
    {
        Self::Query(Box::new(|unheard| {
            let found = query(unheard);
            async move { found.await.map_err(Into::into) }.boxed()
        }))
    }
}

impl<T> fmt::Debug for OnUnknown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Query(_) => "Query",
            Self::Repeat => "Repeat",
            Self::Fail => "Fail",
        })
    }
}
