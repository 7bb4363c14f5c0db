//! Filters: hooks that run before and after the handler.

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::Effect;

use crate::{HandlerError, Message, Settlement};

/// Inspects messages before they are consumed and effects before they are recorded.
///
/// If there are several filters, each message passes them in the order in which they were added,
/// and its effects pass them in the reverse order. Each filter gets the result of the filters
/// before it.
///
/// ```
/// use futures_util::{FutureExt, future::BoxFuture};
/// use idem_runtime::{Idem, Message, Settlement, filter::{Before, Filter}};
///
/// struct RefuseHuge;
///
/// impl Filter for RefuseHuge {
///     fn before_consuming<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Before> {
///         async move {
///             match message.payload().len() {
///                 0..=1_000_000 => Before::Continue,
///                 _ => Before::Stop(Settlement::reject("more than a million bytes")),
///             }
///         }
///         .boxed()
///     }
/// }
///
/// let idem = Idem::builder().filter(RefuseHuge).build()?;
/// # let _ = idem;
/// # Ok::<(), idem_runtime::Error>(())
/// ```
pub trait Filter: Send + Sync + 'static {
    /// Called for each delivery, including duplicates, before any other processing.
    ///
    /// No transaction is open.
    fn before_consuming<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Before> {
        let _ = message;
        async { Before::Continue }.boxed()
    }

    /// Called after the handler has succeeded and before its effects are recorded, in the
    /// transaction of the handler.
    ///
    /// Called once for each attempt, and not for duplicates.
    fn on_consumed<'a>(
        &'a self,
        message: &'a Message,
        effects: &'a [Effect],
    ) -> BoxFuture<'a, After> {
        let _ = (message, effects);
        async { After::Continue }.boxed()
    }
}

/// What a filter decides about a message.
#[derive(Debug)]
#[non_exhaustive]
pub enum Before {
    /// The message is processed unchanged.
    Continue,
    /// The message is not consumed. The broker gets this settlement, and the result is
    /// [`Processed::Stopped`](crate::Processed::Stopped). With [`Settlement::Release`] the message
    /// is redelivered later. [`Settlement::Retry`] counts as a failure of the message: after too
    /// many failures it is rejected.
    Stop(Settlement),
    /// This message is processed instead. Its destination, id and payload are used. A message of
    /// the inbox keeps the id under which it is stored.
    Replace(Message),
}

/// What a filter decides about the effects of a handler.
#[derive(Debug)]
#[non_exhaustive]
pub enum After {
    /// The effects are recorded unchanged.
    Continue,
    /// These effects are recorded in place of the handler's effects.
    Replace(Vec<Effect>),
    /// The attempt fails with this error, like an error of the handler: everything is rolled back.
    Stop(HandlerError),
}
