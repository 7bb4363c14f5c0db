//! The handlers inside of this crate, as bounds. A public function that takes a handler has the
//! bound itself, which infers the arguments of a closure: see [`handler`](crate::handler).

use std::future::Future;

use super::tx::Tx;
use crate::{Handled, Message};

/// A handler that works in a transaction.
pub(crate) trait Work: Fn(Tx, Message) -> Self::Future {
    type Future: Future<Output = Handled>;
}

impl<F, Fut> Work for F
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    type Future = Fut;
}

/// A handler that works once, with a `W`.
pub(crate) trait WorkOnce<W>: FnOnce(W, Message) -> Self::Future {
    type Future: Future<Output = Handled>;
}

impl<F, Fut, W> WorkOnce<W> for F
where
    F: FnOnce(W, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    type Future = Fut;
}
