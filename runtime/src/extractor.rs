//! Handlers with other arguments than the message: each argument is extracted from the message.
//!
//! The first argument of a handler is a transaction or a lease. It is passed on and not extracted,
//! so the compiler checks that a handler gets it exactly once. Every further argument is read from
//! the message by [`FromMessage`].
//!
//! [`extract`] is a function around a handler and not a second method beside
//! [`Consumer::handle`](crate::Consumer::handle): its result is a handler like any other, so it
//! fits every function that takes one. The compiler cannot infer the types of the arguments of a
//! closure inside `extract`, so the closure must state them.

use std::future::ready;

use futures_util::{FutureExt, future::BoxFuture};
use serde::de::DeserializeOwned;

use crate::{Handled, HandlerError, Message};

/// An argument of a handler that is read from the message.
///
/// `S` is the state that [`extract_with`] was given. An implementation for any `S` does not use
/// the state.
///
/// ```
/// use idem_runtime::{HandlerError, Message, extractor::FromMessage};
///
/// /// The tenant that the message belongs to.
/// struct Tenant(String);
///
/// impl<S> FromMessage<S> for Tenant {
///     fn from_message(message: &Message, _: &S) -> Result<Self, HandlerError> {
///         match message.header("x-tenant") {
///             Some(tenant) => Ok(Self(tenant.to_owned())),
///             None => Err(HandlerError::terminal("the header x-tenant is missing")),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of this handler",
    label = "not read from a message with the state `{S}`",
    note = "after its first argument, a handler takes `Json<T>`, `Message`, `State<S>` or another \
            type that implements `FromMessage<S>`",
    note = "`State<S>` needs `extract_with(state, handler)`, where `state` is an `S`"
)]
pub trait FromMessage<S>: Sized {
    /// Reads the argument.
    ///
    /// If this returns an error, the handler does not run, and the error counts as an error of the
    /// handler. An error that no other attempt can correct should be
    /// [terminal](HandlerError::terminal).
    fn from_message(message: &Message, state: &S) -> Result<Self, HandlerError>;
}

/// The whole message.
impl<S> FromMessage<S> for Message {
    fn from_message(message: &Message, _: &S) -> Result<Self, HandlerError> {
        Ok(message.clone())
    }
}

/// The payload, deserialized from JSON.
///
/// A payload that is not JSON of this type is a [terminal](HandlerError::terminal) error, so the
/// message is rejected at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Json<T>(pub T);

impl<S, T: DeserializeOwned> FromMessage<S> for Json<T> {
    fn from_message(message: &Message, _: &S) -> Result<Self, HandlerError> {
        Ok(Self(message.json()?))
    }
}

/// A clone of the state that [`extract_with`] was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State<S>(pub S);

impl<S: Clone> FromMessage<S> for State<S> {
    fn from_message(_: &Message, state: &S) -> Result<Self, HandlerError> {
        Ok(Self(state.clone()))
    }
}

/// A function that [`extract`] accepts. `W` is its first argument, and `A` is a tuple of up to five
/// further arguments.
///
/// All async functions and closures with such arguments implement this trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not an async function of a transaction or lease and up to five other arguments",
    note = "a handler looks like `async fn book(tx: Tx, Json(order): Json<Order>) -> Handled`; the \
            first argument is `Tx`, or `LeaseContext` in a leased handler",
    note = "a closure annotates its arguments: `|tx: Tx, Json(order): Json<Order>| async move {{ \
            ... }}`"
)]
pub trait ExtractingHandler<W, A>: Send + Sync + 'static {
    /// Calls the function.
    fn call(&self, work: W, arguments: A) -> BoxFuture<'static, Handled>;
}

/// Implements both traits for one number of arguments.
macro_rules! arguments {
    ($($argument:ident),*) => {
        impl<S, $($argument: FromMessage<S>),*> FromMessage<S> for ($($argument,)*) {
            #[allow(unused_variables, reason = "there may be no arguments")]
            fn from_message(message: &Message, state: &S) -> Result<Self, HandlerError> {
                Ok(($($argument::from_message(message, state)?,)*))
            }
        }

        impl<F, Fut, W, $($argument),*> ExtractingHandler<W, ($($argument,)*)> for F
        where
            F: Fn(W, $($argument),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Handled> + Send + 'static,
        {
            #[allow(non_snake_case, reason = "a value is named like its type")]
            fn call(
                &self,
                work: W,
                ($($argument,)*): ($($argument,)*),
            ) -> BoxFuture<'static, Handled> {
                self(work, $($argument),*).boxed()
            }
        }
    };
}

arguments!();
arguments!(A1);
arguments!(A1, A2);
arguments!(A1, A2, A3);
arguments!(A1, A2, A3, A4);
arguments!(A1, A2, A3, A4, A5);

/// Makes a handler from an async function whose arguments are extracted from the message.
///
/// The first argument is [`Tx`](crate::Tx), or [`LeaseContext`](crate::lease::LeaseContext) in a
/// leased handler. Up to five arguments follow, in any order: [`Json<T>`](Json), [`Message`], and
/// other types that implement [`FromMessage`]. If an argument cannot be extracted, the handler does
/// not run, and the error counts as its own error.
///
/// ```
/// use idem_client::Effect;
/// use idem_runtime::{Consumer, Handled, Json, Source, Tx, extract};
///
/// #[derive(serde::Deserialize, serde::Serialize)]
/// struct Order {
///     item: i64,
/// }
///
/// async fn reserve(tx: Tx, Json(order): Json<Order>) -> Handled {
///     tx.execute("UPDATE stock SET reserved = reserved + 1 WHERE item = $1", &[&order.item])
///         .await?;
///     Ok(vec![Effect::json("orders.reserved", &order)?])
/// }
///
/// fn with_handler<S: Source>(consumer: Consumer<S>) -> Consumer<S> {
///     consumer.handle("orders.reserve", extract(reserve))
/// }
/// ```
pub fn extract<W, A, H>(
    handler: H,
) -> impl Fn(W, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static
where
    H: ExtractingHandler<W, A>,
    A: FromMessage<()>,
{
    extract_with((), handler)
}

/// Like [`extract`], with a state that the arguments can use: [`State<S>`](State) is a clone of it.
///
/// ```
/// use std::sync::Arc;
/// use idem_client::Effect;
/// use idem_runtime::{Consumer, Handled, Json, Source, State, Tx, extractor::extract_with};
///
/// struct Prices {
///     cents: i64,
/// }
///
/// async fn price(_: Tx, State(prices): State<Arc<Prices>>, Json(count): Json<i64>) -> Handled {
///     Ok(vec![Effect::json("orders.priced", &(count * prices.cents))?])
/// }
///
/// fn with_handler<S: Source>(consumer: Consumer<S>, prices: Arc<Prices>) -> Consumer<S> {
///     consumer.handle("orders.price", extract_with(prices, price))
/// }
/// ```
pub fn extract_with<S, W, A, H>(
    state: S,
    handler: H,
) -> impl Fn(W, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static
where
    S: Send + Sync + 'static,
    H: ExtractingHandler<W, A>,
    A: FromMessage<S>,
{
    move |work, message| match A::from_message(&message, &state) {
        Ok(arguments) => handler.call(work, arguments),
        Err(error) => ready(Err(error)).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use idem_client::Effect;

    /// The first argument of the handlers in these tests. Notes that it was dropped.
    struct Work(Arc<AtomicBool>);

    impl Drop for Work {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn work() -> (Work, Arc<AtomicBool>) {
        let is_dropped = Arc::new(AtomicBool::new(false));
        (Work(Arc::clone(&is_dropped)), is_dropped)
    }

    fn message(payload: &'static str) -> Message {
        Message::new("orders", payload).with_message_id("m-1")
    }

    /// An extractor as an application writes it.
    struct Shard(u64);

    impl FromMessage<u64> for Shard {
        fn from_message(message: &Message, shards: &u64) -> Result<Self, HandlerError> {
            Ok(Self(message.json::<u64>()? % shards))
        }
    }

    /// Returns an effect for each of the texts.
    fn told<const N: usize>(texts: [String; N]) -> Handled {
        texts
            .iter()
            .map(|text| Ok(Effect::json("told", text)?))
            .collect()
    }

    fn texts(handled: Handled) -> Vec<String> {
        let effects = handled.unwrap();
        effects
            .iter()
            .map(|effect| serde_json::to_value(effect).unwrap()["payload"].to_string())
            .collect()
    }

    #[tokio::test]
    async fn arguments_are_read_in_any_order() {
        async fn handler(
            _: Work,
            State(shards): State<u64>,
            message: Message,
            Json(number): Json<u64>,
            Shard(shard): Shard,
        ) -> Handled {
            let id = message.message_id().unwrap_or_default().to_owned();
            told([
                shards.to_string(),
                id,
                number.to_string(),
                shard.to_string(),
            ])
        }
        let handler = extract_with(4_u64, handler);
        let handled = handler(work().0, message("7")).await;
        assert_eq!(texts(handled), [r#""4""#, r#""m-1""#, r#""7""#, r#""3""#]);
    }

    #[tokio::test]
    async fn first_argument_alone_makes_a_handler() {
        let handler = extract(|work: Work| async move {
            drop(work);
            told(["done".to_owned()])
        });
        let (work, is_dropped) = work();
        assert_eq!(texts(handler(work, message("")).await), [r#""done""#]);
        assert!(is_dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn undecodable_payload_is_terminal_and_runs_no_handler() {
        let handler = extract(|_: Work, Json(_): Json<u64>| async move {
            panic!("the handler was called");
        });
        let (work, is_dropped) = work();
        let error = handler(work, message(r#""seven""#)).await.unwrap_err();
        assert!(error.is_terminal(), "{error}");
        assert!(error.to_string().contains("expected u64"), "{error}");
        assert!(is_dropped.load(Ordering::SeqCst), "the transaction is kept");
    }

    #[tokio::test]
    async fn error_of_an_argument_keeps_its_class() {
        struct Api;
        impl<S> FromMessage<S> for Api {
            fn from_message(_: &Message, _: &S) -> Result<Self, HandlerError> {
                Err(HandlerError::unavailable("the API is down"))
            }
        }
        let handler = extract(async |_: Work, _: Api| told([]));
        let error = handler(work().0, message("")).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }

    #[tokio::test]
    async fn error_of_the_handler_is_passed_on() {
        let handler = extract(async |_: Work, _: Message| Err(HandlerError::terminal("never")));
        let error = handler(work().0, message("")).await.unwrap_err();
        assert!(error.is_terminal(), "{error}");
    }

    #[tokio::test]
    async fn handler_takes_five_extracted_arguments() {
        async fn handler(
            _: Work,
            Json(a): Json<u8>,
            Json(b): Json<u16>,
            Json(c): Json<u32>,
            Json(d): Json<u64>,
            Json(e): Json<i64>,
        ) -> Handled {
            let sum = i64::from(a) + i64::from(b) + i64::from(c) + d as i64 + e;
            told([sum.to_string()])
        }
        let handler = extract(handler);
        assert_eq!(texts(handler(work().0, message("7")).await), [r#""35""#]);
    }
}
