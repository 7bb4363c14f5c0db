//! Trait bounds for handlers inside of this crate. A public function that takes a handler does not
//! use them: it has a bound on `Fn`, so that the compiler infers the arguments of a closure. See
//! [`handler`](crate::handler).

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

/// A handler that is called once. `W` is its first argument.
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
