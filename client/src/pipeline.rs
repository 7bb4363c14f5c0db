//! Sends several requests in one round trip.
//!
//! The driver sends a request at the first poll of its future. Requests that are all polled once
//! before the first result is awaited are sent together and share a round trip.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::Poll,
};

use futures_util::{FutureExt, TryStreamExt, poll};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::Error;

/// Statements that fail outside of a transaction block (25P01) and in a failed transaction (25P02).
/// They change nothing, assign no transaction id and return no row. If they fail in a simple query,
/// the server skips the statements after them in this query.
pub const CHECK_TRANSACTION: &str = "SAVEPOINT idem; RELEASE SAVEPOINT idem";

/// A request that was sent. Its result is awaited later.
pub struct Pipelined<'f, T> {
    early: Option<T>,
    request: Pin<Box<dyn Future<Output = T> + Send + 'f>>,
}

impl<'f, T> Pipelined<'f, T> {
    /// Sends the request: polls its future once.
    pub async fn new(request: impl Future<Output = T> + Send + 'f) -> Self {
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

/// Sends COMMIT after requests of the same transaction, and waits for all results.
///
/// The requests must fail if a statement of the transaction has failed or if the transaction has
/// ended: COMMIT itself reports no error in these cases. Without requests, this function does the
/// same as [`commit_alone`]. When this function returns, COMMIT or ROLLBACK was sent, also after an
/// error. An error other than [`Error::AmbiguousCommit`] means a certain rollback.
pub async fn pipeline_commit<T>(
    client: &Client,
    requests: Vec<Pipelined<'_, Result<T, Error>>>,
) -> Result<Vec<T>, Error> {
    if requests.is_empty() {
        return commit_alone(client).await.map(|()| Vec::new());
    }
    if requests
        .iter()
        .any(|request| matches!(request.early, Some(Err(_))))
    {
        // The request was not sent, or the connection is lost, so COMMIT must not be sent.
        rollback_without_wait(client);
        return answers(requests).await;
    }
    let commit = Pipelined::new(client.batch_execute("COMMIT")).await;
    let answers = answers(requests).await.map_err(|error| match error {
        Error::Database(error) => Error::of_commit(error),
        other => other,
    })?;
    commit.answer().await.map_err(Error::of_commit)?;
    Ok(answers)
}

/// Commits without a request before it, in one round trip. The errors are those of
/// [`pipeline_commit`].
///
/// COMMIT of a transaction in which a statement has failed is a silent ROLLBACK, and COMMIT outside
/// of a transaction does nothing and succeeds. So SAVEPOINT is sent before COMMIT in the same
/// message. In these cases it fails, with 25P02 or 25P01, and the server skips the COMMIT.
pub async fn commit_alone(client: &Client) -> Result<(), Error> {
    let mut is_checked = false;
    let ended = async {
        let mut answers = pin!(client.simple_query_raw("SAVEPOINT idem; COMMIT").await?);
        while let Some(answer) = answers.try_next().await? {
            is_checked |= matches!(answer, SimpleQueryMessage::CommandComplete(_));
        }
        Ok(())
    };
    let ended = ended.await.map_err(Error::of_commit);
    if ended.is_err() && !is_checked {
        rollback_without_wait(client);
    }
    ended
}

async fn answers<T>(requests: Vec<Pipelined<'_, Result<T, Error>>>) -> Result<Vec<T>, Error> {
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        answers.push(request.answer().await?);
    }
    Ok(answers)
}

/// Sends ROLLBACK without waiting. A connection executes its requests in order.
pub fn rollback_without_wait(client: &Client) {
    fire_and_forget(client, "ROLLBACK");
}

/// Sends a statement without waiting for its result.
pub fn fire_and_forget(client: &Client, sql: &str) {
    let _ = client.batch_execute(sql).now_or_never();
}
