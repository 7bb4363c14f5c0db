//! The service that processes the requests of a layer.

use std::{
    error::Error as StdError,
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use tower::Service;

use crate::{
    body::{self, Body, Unread},
    fingerprint::Fingerprint,
    lease,
    options::{Mode, Options},
    problem::Problem,
    request_identity::{Failure, RequestIdentity},
    transaction,
};

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) creates.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    options: Arc<Options>,
    inner: S,
}

impl<S> IdempotencyService<S> {
    pub(crate) fn new(options: Arc<Options>, inner: S) -> Self {
        Self { options, inner }
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let later = self.inner.clone();
        // Call the service that was polled ready. Its clone may not be ready.
        let ready = mem::replace(&mut self.inner, later);
        let options = Arc::clone(&self.options);
        async move {
            match answer(options, ready, request).await {
                Ok(response) => Ok(response),
                Err(Failure::Problem(problem)) => Ok(problem.response()),
                Err(Failure::Service(error)) => Err(error),
            }
        }
        .boxed()
    }
}

async fn answer<S, B, R>(
    options: Arc<Options>,
    mut service: S,
    request: Request<B>,
) -> Result<Response<Body>, Failure<S::Error>>
where
    S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let (parts, body) = request.into_parts();
    let Some(id) = options.identify(&parts)? else {
        let request = Request::from_parts(parts, body::pass(body));
        let response = service.call(request).await.map_err(Failure::Service)?;
        return Ok(response.map(body::pass));
    };
    let body = read(body, options.request_limit).await?;
    let identity = RequestIdentity {
        id,
        fingerprint: Fingerprint::of(&parts, &body),
    };
    let request = Request::from_parts(parts, body::full(body));
    match options.mode {
        Mode::Transaction => transaction::answer(&options, identity, request, service).await,
        Mode::Lease => lease::answer(options, identity, request, service).await,
    }
}

async fn read<B>(body: B, limit: usize) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    body::read(body, limit)
        .await
        .map_err(|unread| match unread {
            Unread::TooLarge => Problem::RequestTooLarge(limit),
            Unread::Broken(error) => {
                tracing::debug!(error, "the body of a request ended early");
                Problem::UnreadableRequest
            }
        })
}
