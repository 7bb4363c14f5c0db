//! Handlers, which are the user's code for one message, and their errors.
//!
//! A handler is a function of two arguments: what it works with, and the message. It works with a
//! transaction ([`Tx`](crate::Tx)) or with a lease ([`LeaseContext`](crate::lease::LeaseContext)).
//!
//! There is no trait for handlers. The functions that take a handler have the bound
//! `F: Fn(Tx, Message) -> Fut` themselves, because the compiler infers the types of the arguments
//! of a closure from such a bound only. With a trait in its place, `|tx, message|` would need
//! annotations: a trait for functions with any arguments does not determine the arguments, and
//! with a trait that has `Fn(Tx, Message)` as its supertrait, `async |tx, message|` does not
//! compile.

use std::{future::Future, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::Effect;

use crate::Message;

pub use crate::error::{DecodeError, HandlerError, HandlerFailed};

/// The result of a handler: the effects to record, or the error.
pub type Handled = Result<Vec<Effect>, HandlerError>;

/// A handler as a trait object. `W` is its first argument: a transaction or a lease.
pub(crate) type ErasedHandler<W> =
    Arc<dyn Fn(W, Message) -> BoxFuture<'static, Handled> + Send + Sync>;

pub(crate) fn erase<W, F, Fut>(handler: F) -> ErasedHandler<W>
where
    F: Fn(W, Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send + 'static,
{
    Arc::new(move |work, message| handler(work, message).boxed())
}
