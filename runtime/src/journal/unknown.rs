//! What to do about an external call with an unknown result.

use std::{fmt, future::Future};

use futures_util::{FutureExt, future::BoxFuture};
use time::OffsetDateTime;

use super::CallError;

/// An external call that an earlier attempt began and did not end: the process of that attempt was
/// killed, or it received no reply.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct UnknownCall {
    /// The idempotency key of the call.
    pub idempotency_key: String,
    /// The number of the current attempt. It is at least 2, because an earlier attempt began the
    /// call.
    pub attempt: i32,
    /// When the first attempt without a recorded result began.
    pub begun_at: Option<OffsetDateTime>,
}

/// What to do about an external call of an earlier attempt with an unknown result.
#[non_exhaustive]
pub enum OnUnknown<'q, T> {
    /// Query the external system, or another system, for the result: see [`OnUnknown::query`].
    Query(Query<'q, T>),
    /// Make the call again with the same key: for an external system that honours the key, or a
    /// call that may be made twice.
    Repeat,
    /// Do not make the call. Fail with [`CallFailed::Unknown`](super::CallFailed::Unknown), which
    /// is terminal.
    Fail,
}

/// A function that finds out whether a call was made.
pub type Query<'q, T> =
    Box<dyn FnOnce(UnknownCall) -> BoxFuture<'q, Result<Option<T>, CallError>> + Send + 'q>;

impl<'q, T> OnUnknown<'q, T> {
    /// Queries the result of the call. `Some` is the result, which is recorded. `None` means that
    /// the call was not made, so it is made now. After an error the result is still unknown, unless
    /// the error is a [`CallError`] with more information.
    pub fn query<F, Fut, E>(query: F) -> Self
    where
        F: FnOnce(UnknownCall) -> Fut + Send + 'q,
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
