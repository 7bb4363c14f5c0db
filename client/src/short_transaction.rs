//! Runs one or a few SQL functions in a short transaction, on a pooled connection.

use std::{future::Future, sync::Arc};

use backon::Retryable;
use deadpool_postgres::Pool;
use tokio_postgres::Client;

use crate::{
    Error, Retry,
    connection::{Checkout, STATEMENT, within},
    pipeline::{Pipelined, fire_and_forget, pipeline_commit},
    process::back_off,
};

/// A READ COMMITTED transaction for requests that commit together: BEGIN, the requests and COMMIT
/// are one round trip. If this value is dropped before its [end](ShortTransaction::end), its
/// connection is closed.
pub(crate) struct ShortTransaction {
    checkout: Arc<Checkout>,
}

impl ShortTransaction {
    /// Begins without waiting for the reply to BEGIN. If the server does not execute BEGIN, each
    /// request after it commits by itself. This is correct for a single request.
    pub(crate) async fn begin(pool: &Pool) -> Result<Self, Error> {
        let checkout = Checkout::take(pool).await?;
        fire_and_forget(checkout.client(), "BEGIN ISOLATION LEVEL READ COMMITTED");
        Ok(Self { checkout })
    }

    pub(crate) fn client(&self) -> &Client {
        self.checkout.client()
    }

    /// Sends a request and the COMMIT after it. After [`Error::AmbiguousCommit`], or after
    /// [`Error::Pool`] because the server is silent, the result is unknown. Any other error means a
    /// certain rollback.
    pub(crate) async fn run<'c, T>(
        &'c self,
        call: impl Future<Output = Result<T, Error>> + Send + 'c,
    ) -> Result<T, Error> {
        self.run_all([call])
            .await?
            .pop()
            .ok_or_else(|| Error::Unexpected("no result of a request".into()))
    }

    /// Like [`run`](Self::run), with several requests in this order.
    pub(crate) async fn run_all<'c, T>(
        &'c self,
        calls: impl IntoIterator<Item = impl Future<Output = Result<T, Error>> + Send + 'c>,
    ) -> Result<Vec<T>, Error> {
        let mut sent = Vec::new();
        for call in calls {
            sent.push(Pipelined::new(call).await);
        }
        within(STATEMENT, pipeline_commit(self.checkout.client(), sent)).await
    }

    /// Returns the connection to its pool, unless the error means that the connection may be
    /// unusable.
    pub(crate) fn end<T>(self, answer: Result<T, Error>) -> Result<T, Error> {
        self.checkout.end(answer)
    }
}

/// Repeats a short transaction after a lost conflict or connection, also if the result of the
/// transaction is unknown. So each transaction may take effect twice.
pub(crate) async fn again<T, F, Fut>(retry: Retry, step: F) -> Result<T, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Error>>,
{
    step.retry(back_off(&retry)).when(Error::is_retryable).await
}
