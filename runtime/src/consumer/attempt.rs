//! One attempt to process a message, or several messages in one transaction. A panic counts as a
//! failure of the message.

use std::sync::Arc;

use deadpool_postgres::Pool;
use futures_util::{FutureExt, future::BoxFuture};

use super::routes::{Route, RouteAction};
use crate::{
    Error, Handled, HandlerError, Idem, Message, Processed,
    handler::ErasedHandler,
    inbox::{store, store_batch},
    panics::unwinding,
};

/// Processes messages of one route. Returns one result for each message, in the same order.
pub(super) async fn attempt_route(
    idem: &Idem,
    pool: &Pool,
    route: &Route,
    messages: &[Message],
) -> Vec<Result<Processed, Error>> {
    if messages.len() > 1
        && let Ok(results) = unwinding(batch(idem, pool, route, messages)).await
        && results.len() == messages.len()
    {
        return results;
    }
    // If `store_batch` has failed, it has rolled back. The reason can be a panic of an id function,
    // which must fail only its own message, so process the messages one by one. `process_batch`
    // converts panics itself, because it may have committed some of its messages.
    let mut results = Vec::with_capacity(messages.len());
    for message in messages {
        let result = unwinding(single(idem, pool, route, message)).await;
        results.push(result.unwrap_or_else(|panic| Err(Error::Handler(HandlerError::from(panic)))));
    }
    results
}

/// Processes one message with the handler of its route.
async fn single(
    idem: &Idem,
    pool: &Pool,
    route: &Route,
    message: &Message,
) -> Result<Processed, Error> {
    match &route.action {
        RouteAction::Handle(handler) => idem.process(pool, message, catching_panics(handler)).await,
        RouteAction::Store => store(idem, pool, &route.destination, message).await,
        RouteAction::Leased(handler) => {
            idem.process_leased(pool, message, catching_panics(handler))
                .await
        }
        RouteAction::Checked(handler) => {
            let handler = catching_panics(handler);
            idem.process_checked(pool, message, |message| handler((), message))
                .await
        }
    }
}

/// Processes several messages in one transaction. If this function does not return a result for
/// every message, the caller processes the messages one by one.
async fn batch(
    idem: &Idem,
    pool: &Pool,
    route: &Route,
    messages: &[Message],
) -> Vec<Result<Processed, Error>> {
    match &route.action {
        RouteAction::Handle(handler) => {
            idem.process_batch(pool, messages, catching_panics(handler))
                .await
        }
        RouteAction::Store => store_batch(idem, pool, &route.destination, messages)
            .await
            .unwrap_or_default(),
        RouteAction::Leased(_) | RouteAction::Checked(_) => Vec::new(),
    }
}

/// Returns the handler of the route with panics converted to errors. After a panic the transaction
/// rolls back as after any other error.
fn catching_panics<W: Send + 'static>(
    handler: &ErasedHandler<W>,
) -> impl Fn(W, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static {
    let handler = Arc::clone(handler);
    move |work, message| {
        let handler = Arc::clone(&handler);
        unwinding(async move { handler(work, message).await })
            .map(|handled| handled.unwrap_or_else(|panic| Err(HandlerError::from(panic))))
            .boxed()
    }
}
