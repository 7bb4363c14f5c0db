//! Sends several requests in one round trip.
//!
//! The driver sends a request at the first poll of its future. Requests that are all polled once
//! before the first result is awaited are sent together and share a round trip.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::Poll,
};

use futures_util::{FutureExt, TryStreamExt, future::join, poll};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::Error;

/// An expression that forbids COMMIT until [`ALLOW_COMMIT`]: the server rejects a COMMIT that the
/// user of the transaction executes (2D000), and the transaction is then a failed one. Add it to
/// the columns of the statement that claims, because a statement of its own would cost more.
pub const FORBID_COMMIT_COLUMN: &str = "idem_forbid_commit()";

/// Allows COMMIT again. Fails with 25P01 if the transaction in which COMMIT was forbidden has
/// ended, and with 25P02 if a statement of this transaction has failed. Fails with 42501 or
/// 42883 if the role or the search_path has changed. The server then skips the statements after it
/// in the same simple query. Returns one row.
pub const ALLOW_COMMIT: &str = "SELECT idem_allow_commit()";

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

    /// Waits for the result.
    pub async fn answer(self) -> T {
        match self.early {
            Some(answer) => answer,
            None => self.request.await,
        }
    }
}

/// Sends COMMIT after requests of the same transaction, and waits for all results. Fails without a
/// request.
///
/// The requests must fail if a statement of the transaction has failed or if the transaction has
/// ended: COMMIT itself reports no error in these cases. When this function returns, COMMIT or
/// ROLLBACK was sent, also after an error. An error other than [`Error::AmbiguousCommit`] means
/// that the COMMIT of this function has not taken effect.
pub async fn pipeline_commit<T>(
    client: &Client,
    requests: Vec<Pipelined<'_, Result<T, Error>>>,
) -> Result<Vec<T>, Error> {
    if requests.is_empty() {
        rollback_without_wait(client);
        return Err(Error::Invalid("a COMMIT without a request".into()));
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

/// Allows COMMIT in a transaction in which it is forbidden, sends the requests, and commits, in one
/// round trip.
///
/// Fails with [`Error::TransactionEnded`] if the transaction has ended. It cannot have committed,
/// but requests that succeed outside of a transaction have then taken effect. Fails with
/// [`Error::SettingsChanged`] if the role or the search_path has changed. Also fails if a statement
/// of the transaction has failed. When this function returns, COMMIT or ROLLBACK was sent, also
/// after an error. An error other than [`Error::AmbiguousCommit`] means a certain rollback.
pub async fn allow_and_commit<T>(
    client: &Client,
    requests: Vec<impl Future<Output = Result<T, Error>> + Send>,
) -> Result<Vec<T>, Error> {
    if requests.is_empty() {
        return allow_and_commit_alone(client).await.map(|()| Vec::new());
    }
    let allowed = Pipelined::new(allow_commit(client)).await;
    let mut sent = Vec::with_capacity(requests.len());
    for request in requests {
        sent.push(Pipelined::new(request).await);
    }
    // Read the results concurrently: the connection stops when the first one is not read.
    let committed = pipeline_commit(client, sent);
    let (allowed, committed) = join(allowed.answer(), committed).await;
    match allowed {
        Err(error @ (Error::TransactionEnded | Error::SettingsChanged(_))) => Err(error),
        // The requests after it report only that the transaction has failed.
        Err(Error::Database(error)) if error.as_db_error().is_some() => {
            Err(Error::of_commit(error))
        }
        // A lost connection makes the commit ambiguous, and `committed` has that error.
        _ => committed,
    }
}

async fn allow_and_commit_alone(client: &Client) -> Result<(), Error> {
    let (is_allowed, ended) = query_after_allow(client, "COMMIT").await;
    let ended = ended.map(drop);
    if is_allowed {
        return ended.map_err(Error::of_commit);
    }
    rollback_without_wait(client);
    ended.map_err(|error| match Error::of_allow(error) {
        Error::Database(error) => Error::of_commit(error),
        other => other,
    })
}

/// Allows COMMIT in a transaction in which it is forbidden, and executes `sql`, in one simple
/// query. The errors of the first step are those of [`allow_commit`], and the server then skips
/// `sql`.
pub async fn allow_and_query(client: &Client, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
    let (is_allowed, answers) = query_after_allow(client, sql).await;
    answers.map_err(|error| match is_allowed {
        true => Error::Database(error),
        false => Error::of_allow(error),
    })
}

/// Sends [`ALLOW_COMMIT`] and `sql` in one simple query: if COMMIT cannot be allowed, the server
/// skips `sql`. Returns whether COMMIT was allowed, and the replies.
async fn query_after_allow(
    client: &Client,
    sql: &str,
) -> (bool, Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>) {
    let mut is_allowed = false;
    let answers = async {
        let sql = format!("{ALLOW_COMMIT}; {sql}");
        let mut answers = pin!(client.simple_query_raw(&sql).await?);
        let mut read = Vec::new();
        while let Some(answer) = answers.try_next().await? {
            is_allowed |= matches!(answer, SimpleQueryMessage::CommandComplete(_));
            read.push(answer);
        }
        Ok(read)
    };
    let answers = answers.await;
    (is_allowed, answers)
}

/// Allows COMMIT in a transaction in which it is forbidden, and waits for the reply. Fails with
/// [`Error::TransactionEnded`] if the transaction has ended, and with [`Error::SettingsChanged`] if
/// the role or the search_path has changed.
pub async fn allow_commit(client: &Client) -> Result<(), Error> {
    let allowed = client.batch_execute(ALLOW_COMMIT).await;
    allowed.map_err(Error::of_allow)
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
