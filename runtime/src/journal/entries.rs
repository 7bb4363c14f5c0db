//! Reads and writes the journal of one message.
//!
//! Each function is a short transaction, which is repeated after a lost reply.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::{FutureExt, TryFutureExt};
use idem_client::{
    ErrorKind,
    journal::{Begun, CallState, begin_call, fail_call, finish_call},
};
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::Client;

use super::Calls;
use crate::{
    Error,
    policy::Retry,
    short_transaction::{ShortTransaction, again, in_retried_transaction},
};

type Request<'c, T> = Pin<Box<dyn Future<Output = Result<T, idem_client::Error>> + Send + 'c>>;

impl Calls {
    /// Begins an attempt, and commits. Fails with [`Error::LeaseLost`] after the lease is lost.
    ///
    /// After a lost reply to COMMIT the transaction is repeated. The step is then unknown because
    /// of the first try, which has made no call. So if the first try found a new step, the step is
    /// still new. The first try waits for this result before it sends COMMIT. Otherwise the replies
    /// to `idem_begin_call` and to COMMIT could be lost together.
    pub(super) async fn begin(
        &self,
        step: &str,
        request: &(impl Serialize + ?Sized),
    ) -> Result<Begun, Error> {
        let request = serde_json::to_value(request).map_err(idem_client::Error::Encode)?;
        let (first, is_lost) = (OnceLock::new(), AtomicBool::new(false));
        let begun = again(Retry::default(), || async {
            let on = ShortTransaction::new(&self.pool).await?;
            let begin = begin_call(
                on.client(),
                &self.id,
                &self.destination,
                step,
                Some(&request),
            );
            let requests =
                self.under_lease(on.client(), begin.map_ok(Some).boxed(), None, &is_lost);
            let begun = match on.run_before_commit(requests).await {
                Ok(mut begun) => match begun.pop().flatten() {
                    Some(begun) => {
                        first.get_or_init(|| begun.clone());
                        on.commit().await.map(|()| begun)
                    }
                    None => Err(Error::Unexpected("no row for a journal entry".into())),
                },
                Err(error) => Err(error),
            };
            on.end(begun)
        });
        let begun = begun.await.map_err(|error| or_lost(error, &is_lost))?;
        match first.into_inner() {
            Some(first) if is_unknown_because_of(&first, &begun) => Ok(first),
            _ => Ok(begun),
        }
    }

    /// Records the response of an attempt, also after the lease is lost: the call was made.
    pub(super) async fn record_response(&self, step: &str, response: &Value) -> Result<(), Error> {
        in_retried_transaction(&self.pool, Retry::default(), async |client| {
            finish_call(&**client, &self.id, &self.destination, step, Some(response)).await
        })
        .await
    }

    /// Records that the call was made and that its response cannot be stored, also after the lease
    /// is lost, as a response is.
    pub(super) async fn record_unstorable(&self, step: &str, error: &str) -> Result<(), Error> {
        in_retried_transaction(&self.pool, Retry::default(), async |client| {
            fail_call(&**client, &self.id, &self.destination, step, error, false).await
        })
        .await
    }

    /// Records that an attempt failed. Fails with [`Error::LeaseLost`] after the lease is lost: the
    /// next holder may have begun the same step, and its attempt must not be taken back.
    pub(super) async fn record_failure(
        &self,
        step: &str,
        error: &str,
        is_retryable: bool,
    ) -> Result<(), Error> {
        let is_lost = AtomicBool::new(false);
        let failed = again(Retry::default(), || async {
            let on = ShortTransaction::new(&self.pool).await?;
            let fail = fail_call(
                on.client(),
                &self.id,
                &self.destination,
                step,
                error,
                is_retryable,
            );
            let failed = on
                .run_all(self.under_lease(on.client(), fail.boxed(), (), &is_lost))
                .await;
            on.end(failed)
        });
        failed
            .await
            .map(drop)
            .map_err(|error| or_lost(error, &is_lost))
    }

    /// Returns the request, after the extension of the lease if there is one. The extension has the
    /// result `extended`, and sets `is_lost` if the lease is lost.
    fn under_lease<'c, T: Send + 'c>(
        &'c self,
        client: &'c Client,
        request: Request<'c, T>,
        extended: T,
        is_lost: &'c AtomicBool,
    ) -> Vec<Request<'c, T>> {
        // Use a `Vec`: with a chain of two iterators, the future of a generic caller would not be
        // `Send`.
        let mut requests = Vec::with_capacity(2);
        if let Some(held) = &self.held {
            let extend = held.extend(client, held.lease()).inspect_err(|error| {
                is_lost.fetch_or(error.kind() == ErrorKind::NotClaimed, Ordering::Relaxed);
            });
            requests.push(extend.map_ok(|()| extended).boxed());
        }
        requests.push(request);
        requests
    }
}

/// Returns whether a step is unknown because of the first try, which found a new step. `begun_at`
/// is the time of the attempt that made the step unknown. If the first try was rolled back, it is
/// the time of an attempt of another process.
fn is_unknown_because_of(first: &Begun, begun: &Begun) -> bool {
    first.state == CallState::New
        && begun.state == CallState::Unknown
        && first.begun_at == begun.begun_at
}

fn or_lost(error: Error, is_lost: &AtomicBool) -> Error {
    match is_lost.load(Ordering::Relaxed) {
        true => Error::LeaseLost,
        false => error,
    }
}
