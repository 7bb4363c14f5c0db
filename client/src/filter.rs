//! Hooks around the handler.

use futures_util::{FutureExt, future::BoxFuture};

use crate::{Effect, HandlerError, Message, Settlement};

/// Looks at messages before they are consumed and at effects before they are recorded.
///
/// Several filters see a message in the order in which they were added, and its effects in the
/// reverse order. Each sees what those before it have put in place.
///
/// ```
/// use futures_util::{FutureExt, future::BoxFuture};
/// use idem_client::{Before, Filter, Idem, Message, Settlement};
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
/// # Ok::<(), idem_client::Error>(())
/// ```
pub trait Filter: Send + Sync + 'static {
    /// Called for each delivery, duplicates too, before anything else is done with it: no
    /// transaction is open.
    fn before_consuming<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Before> {
        let _ = message;
        async { Before::Continue }.boxed()
    }

    /// Called after the handler has succeeded and before its effects are recorded, in its
    /// transaction: once for each attempt, and not for duplicates.
    fn on_consumed<'a>(
        &'a self,
        message: &'a Message,
        effects: &'a [Effect],
    ) -> BoxFuture<'a, After> {
        let _ = (message, effects);
        async { After::Continue }.boxed()
    }
}

/// What a filter says about a message.
#[derive(Debug)]
#[non_exhaustive]
pub enum Before {
    /// It goes on as it is.
    Continue,
    /// It is not consumed: the broker is told this, and
    /// [`Processed::Stopped`](crate::Processed::Stopped) is the answer. With
    /// [`Settlement::Release`] it comes again later. [`Settlement::Retry`] counts as its failure:
    /// after too many failures it is refused.
    Stop(Settlement),
    /// This message takes its place: its destination, id and payload are what counts.
    Replace(Message),
}

/// What a filter says about the effects of a handler.
#[derive(Debug)]
#[non_exhaustive]
pub enum After {
    /// They are recorded as they are.
    Continue,
    /// These are recorded in their place.
    Replace(Vec<Effect>),
    /// As if the handler had failed with this: everything is rolled back.
    Stop(HandlerError),
}
