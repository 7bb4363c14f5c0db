//! One attempt at a message, or at several in one transaction. Whatever panics is a failure and no
//! more.

use std::{future::Future, sync::Arc};

use deadpool_postgres::Pool;
use futures_util::{FutureExt, future::BoxFuture};

use super::routes::{AnyHandler, Route, Work};
use crate::{
    Error, Handled, HandlerError, Idem, Message, Processed, Tx,
    durable::{store, store_batch},
    panics::unwinding,
};

/// Processes messages of one route, and answers by position.
pub(super) async fn attempt(
    idem: &Idem,
    pool: &Pool,
    route: &Route,
    messages: &[Message],
) -> Vec<Result<Processed, Error>> {
    if messages.len() > 1
        && let Ok(answers) = unwinding(batch(idem, pool, route, messages)).await
        && answers.len() == messages.len()
    {
        return answers;
    }
    // What panicked outside of a handler, such as a function for ids, shall hit its own message
    // alone.
    let mut answers = Vec::with_capacity(messages.len());
    for message in messages {
        let answer = unwinding(single(idem, pool, route, message)).await;
        answers.push(answer.unwrap_or_else(|panic| Err(Error::Handler(HandlerError::from(panic)))));
    }
    answers
}

/// Everything that happens to one message between its delivery and its settlement.
async fn single(
    idem: &Idem,
    pool: &Pool,
    route: &Route,
    message: &Message,
) -> Result<Processed, Error> {
    match &route.work {
        Work::Handle(handler) => idem.process(pool, message, unharmed(handler)).await,
        Work::Store => store(idem, pool, &route.destination, message).await,
        Work::Leased(handler) => {
            let handle =
                |work, message| harmless(async move { handler.handle_boxed(work, message).await });
            idem.process_leased(pool, message, handle).await
        }
        Work::Checked(handler) => {
            let handle = |message| harmless(async move { handler.handle_boxed(message).await });
            idem.process_checked(pool, message, handle).await
        }
    }
}

/// The same for several messages that share a transaction. Unless they are answered all of them,
/// each goes by itself.
async fn batch(
    idem: &Idem,
    pool: &Pool,
    route: &Route,
    messages: &[Message],
) -> Vec<Result<Processed, Error>> {
    match &route.work {
        Work::Handle(handler) => idem.process_batch(pool, messages, unharmed(handler)).await,
        Work::Store => store_batch(idem, pool, &route.destination, messages)
            .await
            .unwrap_or_default(),
        Work::Leased(_) | Work::Checked(_) => Vec::new(),
    }
}

/// The route's handler, whose panics are errors: its transaction rolls back as after any other.
fn unharmed(
    handler: &Arc<dyn AnyHandler>,
) -> impl Fn(Tx, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static {
    let handler = Arc::clone(handler);
    move |tx, message| {
        let handler = Arc::clone(&handler);
        harmless(async move { handler.handle_boxed(tx, message).await }).boxed()
    }
}

/// A handler's work, whose panics are errors.
async fn harmless(work: impl Future<Output = Handled>) -> Handled {
    unwinding(work)
        .await
        .unwrap_or_else(|panic| Err(HandlerError::from(panic)))
}
