//! One call in a short transaction of its own, on a pooled connection.

use std::{future::Future, sync::Arc};

use backon::Retryable;
use deadpool_postgres::Pool;
use tokio_postgres::Client;

use crate::{
    Error, Retry,
    connection::{Loan, STATEMENT, within},
    process::back_off,
    sent::{Sent, commit_behind, send_unheard},
};

/// A READ COMMITTED transaction for calls that stand or fall with it: BEGIN, the calls and COMMIT
/// are one round trip. Dropped before its [end](Step::end), its connection is closed.
pub(crate) struct Step {
    loan: Arc<Loan>,
}

impl Step {
    /// Nobody waits for the answer to BEGIN. Should it never arrive, the call behind it stands for
    /// itself, and is one statement.
    pub(crate) async fn begin(pool: &Pool) -> Result<Self, Error> {
        let loan = Loan::take(pool).await?;
        send_unheard(loan.client(), "BEGIN ISOLATION LEVEL READ COMMITTED");
        Ok(Self { loan })
    }

    pub(crate) fn client(&self) -> &Client {
        self.loan.client()
    }

    /// Sends a call and the COMMIT behind it. An error other than [`Error::AmbiguousCommit`], and
    /// [`Error::Pool`] of a server that is silent, is a certain rollback.
    pub(crate) async fn run<'c, T>(
        &'c self,
        call: impl Future<Output = Result<T, Error>> + Send + 'c,
    ) -> Result<T, Error> {
        self.run_all([call])
            .await?
            .pop()
            .ok_or_else(|| Error::Unexpected("no answer to a call".into()))
    }

    /// The same with several calls, in this order.
    pub(crate) async fn run_all<'c, T>(
        &'c self,
        calls: impl IntoIterator<Item = impl Future<Output = Result<T, Error>> + Send + 'c>,
    ) -> Result<Vec<T>, Error> {
        let mut sent = Vec::new();
        for call in calls {
            sent.push(Sent::new(call).await);
        }
        within(STATEMENT, commit_behind(self.loan.client(), sent)).await
    }

    /// Returns the connection to its pool, unless it may not be sound.
    pub(crate) fn end<T>(self, answer: Result<T, Error>) -> Result<T, Error> {
        self.loan.end(answer)
    }
}

/// Repeats steps that a lost conflict or connection has ended, also where nobody knows how: each
/// may be done twice.
pub(crate) async fn again<T, F, Fut>(retry: Retry, step: F) -> Result<T, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Error>>,
{
    step.retry(back_off(&retry)).when(Error::is_retryable).await
}
