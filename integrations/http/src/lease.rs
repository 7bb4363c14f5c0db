//! Processes a request under a lease, for work that cannot share a transaction.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt};
use http::{Request, Response, response::Parts};
use idem_client::{
    ErrorKind,
    lease::{Held, Lease, acquire},
};
use idem_runtime::{
    Error,
    lease::{Keeper, LeaseContext},
    policy::Retry,
    transaction::{ShortTransaction, again, in_retried_transaction, in_short_transaction},
};
use tokio_postgres::error::SqlState;
use tower::Service;
use tracing::Instrument;

use crate::{
    IdempotencyLayer,
    body::{self, Body, BoxError},
    journal,
    problem::Problem,
    recorded::Recorded,
    request_identity::{Failure, Handled, RequestIdentity, handle, replay},
};

/// Leases the request, runs the handler, and completes the lease together with the record of the
/// response.
///
/// The handler runs in a task of its own, so it continues when the client disconnects. Its response
/// is recorded, and a repeated request gets this response.
pub(crate) async fn answer<S, R>(
    layer: Arc<IdempotencyLayer>,
    identity: RequestIdentity,
    request: Request<Body>,
    service: S,
) -> Result<Response<Body>, Failure<S::Error>>
where
    S: Service<Request<Body>, Response = Response<R>, Future: Send, Error: Send + 'static>
        + Send
        + 'static,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let running = layer.running.clone();
    let task = async move {
        let attempt = Attempt {
            layer: &layer,
            identity: &identity,
        };
        attempt.answer(request, service).await
    };
    match running.0.spawn(task.in_current_span()).await {
        Ok(answer) => answer,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => panic::resume_unwind(panic),
            // The runtime shuts down, so the task was aborted.
            Err(_) => Err(Problem::InDoubt.into()),
        },
    }
}

struct Attempt<'a> {
    layer: &'a IdempotencyLayer,
    identity: &'a RequestIdentity,
}

impl Attempt<'_> {
    async fn answer<S, R>(
        &self,
        mut request: Request<Body>,
        mut service: S,
    ) -> Result<Response<Body>, Failure<S::Error>>
    where
        S: Service<Request<Body>, Response = Response<R>>,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let held = match self.acquire().await? {
            Lease::Acquired(held) => held,
            other => return Ok(self.not_acquired(other).await?),
        };
        self.begin(&held).await?;
        let keeper = Keeper::start(&held, &self.layer.pool);
        request.extensions_mut().insert(Arc::new(LeaseContext::new(
            &held,
            &self.layer.pool,
            &keeper,
        )));
        let work = AssertUnwindSafe(handle(self.layer, &mut service, request)).catch_unwind();
        let worked = tokio::select! {
            biased;
            worked = work => worked,
            // Another process may now work on the request. A repeated request shows the result.
            () = keeper.lost().cancelled() => return Err(Problem::InDoubt.into()),
        };
        drop(keeper);
        if !matches!(worked, Ok(Ok(Handled::ToRecord(..)))) {
            self.give_back(&held).await;
        }
        match worked {
            Ok(Ok(Handled::ToRecord(parts, body))) => {
                let completed = self.complete(&held, parts, body).await;
                Ok(completed.map_err(Problem::after_work)?)
            }
            Ok(Ok(Handled::Passed(response))) => Ok(response),
            Ok(Err(failure)) => Err(failure),
            Err(panic) => panic::resume_unwind(panic),
        }
    }

    async fn acquire(&self) -> Result<Lease, Error> {
        let (id, destination) = (&self.identity.id, &self.layer.destination);
        in_retried_transaction(&self.layer.pool, Retry::default(), async |client| {
            acquire(&**client, id, destination, self.layer.lease).await
        })
        .await
    }

    async fn not_acquired(&self, lease: Lease) -> Result<Response<Body>, Problem> {
        match lease {
            Lease::Duplicate => {
                let found = self.find().await?;
                replay(found, &self.identity.fingerprint)
            }
            Lease::Dead => Err(Problem::Exhausted),
            Lease::Exhausted(held) => {
                let error = held
                    .last_error()
                    .unwrap_or("the request has no attempts left");
                let release = in_short_transaction(&self.layer.pool, async |client| {
                    held.release(&**client, error, true).await
                });
                if let Err(error) = release.await {
                    tracing::debug!(
                        %error,
                        "cannot release an exhausted request: \
                         it stays leased until its lease expires"
                    );
                }
                Err(Problem::Exhausted)
            }
            Lease::InProgress { .. } | Lease::Acquired(_) => Err(Problem::InProgress),
            // A state that this version does not know: another attempt may succeed.
            _ => Err(Problem::Unavailable),
        }
    }

    /// Binds the key to this request. Fails with [`Problem::Mismatch`] if an attempt at another
    /// request was begun with the key, because that attempt may have had an effect outside of the
    /// database.
    async fn begin(&self, held: &Held) -> Result<(), Problem> {
        let RequestIdentity { id, fingerprint } = self.identity;
        let IdempotencyLayer {
            pool, destination, ..
        } = self.layer;
        let begun = in_retried_transaction(pool, Retry::default(), async |client| {
            journal::begin(&**client, id, destination, fingerprint).await
        });
        let Err(error) = begun.await else {
            return Ok(());
        };
        self.give_back(held).await;
        match error.sqlstate() {
            Some(&SqlState::INTEGRITY_CONSTRAINT_VIOLATION) => Err(Problem::Mismatch),
            _ => Err(error.into()),
        }
    }

    /// Records the response and completes the lease, with retries after lost connections. After an
    /// ambiguous commit, the retry finds out with the token whether the lease is already completed.
    async fn complete(
        &self,
        held: &Held,
        parts: Parts,
        body: Bytes,
    ) -> Result<Response<Body>, Problem> {
        let Self { layer, identity } = self;
        let recorded = Recorded::of(&identity.fingerprint, &parts, &*layer.keep_header, &body);
        let completed = again(Retry::default(), || async {
            let step = ShortTransaction::new(&layer.pool).await?;
            let client = step.client();
            let calls = [
                held.complete(client, &[]).map_ok(drop).boxed(),
                journal::finish(client, &identity.id, &layer.destination, &recorded).boxed(),
            ];
            let done = step.run_all(calls).await;
            step.end(done).map(drop)
        });
        match completed.await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotClaimed => {
                // Either the reply to the commit was lost, or another process has completed the
                // request. In the second case return the response that the other process has
                // recorded.
                let found = self.find().await?;
                match found {
                    None => return Err(Problem::Unavailable),
                    Some(ref stored) if *stored == recorded => {}
                    Some(_) => return replay(found, &identity.fingerprint),
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Response::from_parts(parts, body::full(body)))
    }

    async fn find(&self) -> Result<Option<Recorded>, Error> {
        in_short_transaction(&self.layer.pool, async |client| {
            journal::find(&**client, &self.identity.id, &self.layer.destination).await
        })
        .await
    }

    /// Releases the lease, so that the next request can run at once. If this fails, the next
    /// request waits for the end of the lease.
    async fn give_back(&self, held: &Held) {
        let pool = &self.layer.pool;
        let released = in_retried_transaction(pool, Retry::default(), async |client| {
            held.give_back(&**client).await
        });
        if let Err(error) = released.await {
            tracing::debug!(
                %error,
                "cannot release a request: it stays leased until its lease expires"
            );
        }
    }
}
