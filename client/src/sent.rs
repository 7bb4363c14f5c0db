//! Requests that share a round trip.
//!
//! The driver sends a request at the first poll of its future. So requests that are all polled once
//! before the answer of any is awaited leave together, and are answered together.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::Poll,
};

use futures_util::{FutureExt, TryStreamExt, poll};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::Error;

/// A request that is on its way, and whose answer is awaited later.
pub(crate) struct Sent<'f, T> {
    early: Option<T>,
    request: Pin<Box<dyn Future<Output = T> + Send + 'f>>,
}

impl<'f, T> Sent<'f, T> {
    pub(crate) async fn new(request: impl Future<Output = T> + Send + 'f) -> Self {
        let mut request: Pin<Box<dyn Future<Output = T> + Send + 'f>> = Box::pin(request);
        let early = match poll!(request.as_mut()) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        };
        Self { early, request }
    }

    async fn answer(self) -> T {
        match self.early {
            Some(answer) => answer,
            None => self.request.await,
        }
    }
}

/// Sends COMMIT behind requests of the same transaction, and awaits all answers.
///
/// `requests` is never empty (see [`commit_alone`]): it is they who notice a transaction in which a
/// statement has failed. Whatever this answers, the end of the transaction is on its way; an error
/// other than [`Error::AmbiguousCommit`] is a certain rollback.
pub(crate) async fn commit_behind<T>(
    client: &Client,
    requests: Vec<Sent<'_, Result<T, Error>>>,
) -> Result<Vec<T>, Error> {
    debug_assert!(!requests.is_empty());
    if requests
        .iter()
        .any(|request| matches!(request.early, Some(Err(_))))
    {
        // It never left, or the connection is gone: COMMIT must not be sent.
        rollback_unheard(client);
        return answers(requests).await;
    }
    let commit = Sent::new(client.batch_execute("COMMIT")).await;
    let answers = answers(requests).await.map_err(|error| match error {
        Error::Database(error) => Error::of_commit(error),
        other => other,
    })?;
    commit.answer().await.map_err(Error::of_commit)?;
    Ok(answers)
}

/// Commits without a request before it, in one round trip. An error is what it is in
/// [`commit_behind`].
///
/// COMMIT of a transaction in which a statement has failed is a silent ROLLBACK. A query before it
/// is refused there, and then the COMMIT behind it in the same message is not reached.
pub(crate) async fn commit_alone(client: &Client) -> Result<(), Error> {
    let mut has_asked = false;
    let ended = async {
        let mut answers = pin!(client.simple_query_raw("SELECT 1; COMMIT").await?);
        while let Some(answer) = answers.try_next().await? {
            has_asked |= matches!(answer, SimpleQueryMessage::CommandComplete(_));
        }
        Ok(())
    };
    let ended = ended.await.map_err(Error::of_commit);
    if ended.is_err() && !has_asked {
        rollback_unheard(client);
    }
    ended
}

async fn answers<T>(requests: Vec<Sent<'_, Result<T, Error>>>) -> Result<Vec<T>, Error> {
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        answers.push(request.answer().await?);
    }
    Ok(answers)
}

/// Sends ROLLBACK and waits for nothing: the connection works off its requests in order.
pub(crate) fn rollback_unheard(client: &Client) {
    send_unheard(client, "ROLLBACK");
}

/// Sends a statement and waits for nothing.
pub(crate) fn send_unheard(client: &Client, sql: &str) {
    let _ = client.batch_execute(sql).now_or_never();
}
