//! Runs one or a few SQL functions in a short transaction, on a pooled connection.

use std::{future::Future, sync::Arc};

use backon::Retryable;
use deadpool_postgres::Pool;
use idem_client::pipeline::{
    Pipelined, fire_and_forget, pipeline_commit, roll_back_after, rollback_without_wait,
};
use tokio_postgres::{Client, error::SqlState};

use crate::{
    Error,
    connection::{Checkout, STATEMENT, within},
    policy::Retry,
};

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
const BEGIN_ATTEMPTS: u32 = 3;

/// A READ COMMITTED transaction for requests that commit together. If this value is dropped before
/// its [end](ShortTransaction::end), its connection is closed.
pub struct ShortTransaction {
    checkout: Arc<Checkout>,
}

impl ShortTransaction {
    /// Checks out a connection. [`run`](Self::run) or [`run_all`](Self::run_all) sends BEGIN.
    pub async fn new(pool: &Pool) -> Result<Self, Error> {
        let checkout = Checkout::take(pool).await?;
        Ok(Self { checkout })
    }

    /// Returns the connection, for the requests.
    pub fn client(&self) -> &Client {
        self.checkout.client()
    }

    /// Runs a request in a transaction: BEGIN, the request and COMMIT share one round trip.
    ///
    /// After [`AmbiguousCommit`](idem_client::Error::AmbiguousCommit), or after [`Error::Pool`]
    /// because the server is silent, the result is unknown. Any other error means a certain
    /// rollback.
    ///
    /// If the server cancels BEGIN, the request commits by itself, in the default isolation level
    /// of the role.
    pub async fn run<'c, T>(
        &'c self,
        call: impl Future<Output = Result<T, idem_client::Error>> + Send + 'c,
    ) -> Result<T, Error> {
        self.run_all([call])
            .await?
            .pop()
            .ok_or_else(|| Error::Unexpected("no result of a request".into()))
    }

    /// Runs one or several requests in one transaction, in this order. The errors are those of
    /// [`run`](Self::run).
    ///
    /// Before several requests, this function waits for the reply to BEGIN. If the server cancelled
    /// BEGIN and the connection survived, requests that were sent behind it would commit one by
    /// one.
    pub async fn run_all<'c, T, F>(
        &'c self,
        calls: impl IntoIterator<Item = F>,
    ) -> Result<Vec<T>, Error>
    where
        F: Future<Output = Result<T, idem_client::Error>> + Send + 'c,
    {
        let calls: Vec<_> = calls.into_iter().collect();
        self.checkout.begins();
        within(STATEMENT, async {
            if calls.len() > 1 {
                self.begin().await?;
            } else {
                fire_and_forget(self.client(), BEGIN);
            }
            let committed = pipeline_commit(self.client(), send(calls).await).await;
            self.checkout.ends();
            Ok::<_, Error>(committed?)
        })
        .await
    }

    /// Runs one or several requests in one transaction, in this order, and waits for their results.
    /// [`commit`](Self::commit) commits them. After an error the transaction is rolled back.
    ///
    /// So the results are known also if the result of COMMIT is not. This costs a round trip more
    /// than [`run_all`](Self::run_all).
    pub async fn run_before_commit<'c, T, F>(
        &'c self,
        calls: impl IntoIterator<Item = F>,
    ) -> Result<Vec<T>, Error>
    where
        F: Future<Output = Result<T, idem_client::Error>> + Send + 'c,
    {
        let calls: Vec<_> = calls.into_iter().collect();
        self.checkout.begins();
        let results = within(STATEMENT, async {
            self.begin().await?;
            let mut results = Vec::with_capacity(calls.len());
            for sent in send(calls).await {
                results.push(sent.answer().await?);
            }
            Ok::<_, Error>(results)
        });
        results.await.inspect_err(|_| {
            self.checkout.ends();
            rollback_without_wait(self.client());
        })
    }

    /// Commits the requests of [`run_before_commit`](Self::run_before_commit). The errors are those
    /// of [`run`](Self::run).
    pub async fn commit(&self) -> Result<(), Error> {
        self.checkout.ends();
        let commit = self.client().batch_execute("COMMIT");
        within(STATEMENT, async {
            let committed = commit.await.map_err(|error| {
                roll_back_after(self.client(), &error);
                idem_client::Error::of_commit(error)
            });
            Ok::<_, Error>(committed?)
        })
        .await
    }

    /// Begins the transaction. Repeats a cancelled BEGIN (57014), because it has had no effect.
    async fn begin(&self) -> Result<(), Error> {
        for _ in 1..BEGIN_ATTEMPTS {
            match self.client().batch_execute(BEGIN).await {
                Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {}
                begun => return Ok(begun?),
            }
        }
        Ok(self.client().batch_execute(BEGIN).await?)
    }

    /// Returns the connection to its pool, unless the error means that the connection may be
    /// unusable.
    pub fn end<T>(self, answer: Result<T, Error>) -> Result<T, Error> {
        self.checkout.end(answer)
    }
}

/// Runs a request in a transaction of its own: see [`ShortTransaction::run`].
pub async fn in_short_transaction<T, F, Fut>(pool: &Pool, call: F) -> Result<T, Error>
where
    F: FnOnce(Arc<Checkout>) -> Fut,
    Fut: Future<Output = Result<T, idem_client::Error>> + Send,
{
    let step = ShortTransaction::new(pool).await?;
    let answer = step.run(call(Arc::clone(&step.checkout))).await;
    step.end(answer)
}

/// Runs a request in a transaction of its own, and [repeats](again) the transaction.
pub async fn in_retried_transaction<T, F, Fut>(
    pool: &Pool,
    retry: Retry,
    call: F,
) -> Result<T, Error>
where
    F: Fn(Arc<Checkout>) -> Fut,
    Fut: Future<Output = Result<T, idem_client::Error>> + Send,
{
    again(retry, || in_short_transaction(pool, &call)).await
}

/// Sends requests without waiting for their results.
async fn send<'c, T>(calls: Vec<impl Future<Output = T> + Send + 'c>) -> Vec<Pipelined<'c, T>> {
    let mut sent = Vec::with_capacity(calls.len());
    for call in calls {
        sent.push(Pipelined::new(call).await);
    }
    sent
}

/// Repeats a short transaction after a lost conflict or connection, also if the result of the
/// transaction is unknown. So a transaction may take effect twice.
pub async fn again<T, F, Fut>(retry: Retry, step: F) -> Result<T, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Error>>,
{
    step.retry(retry.backoff()).when(Error::is_retryable).await
}
