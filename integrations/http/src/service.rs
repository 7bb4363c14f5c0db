//! The service that processes the requests of a layer.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use tower::{Layer, Service};

use crate::{
    IdempotencyLayer,
    body::{self, Body, BoxError, Unread},
    fingerprint::Fingerprint,
    layer::Mode,
    lease,
    problem::Problem,
    request_identity::{Failure, RequestIdentity},
    transaction,
};

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) creates.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    layer: Arc<IdempotencyLayer>,
    inner: S,
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        let layer = Arc::new(self.clone());
        IdempotencyService { layer, inner }
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = Response<R>, Future: Send, Error: Send + 'static>
        + Clone
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
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
        let layer = Arc::clone(&self.layer);
        async move {
            match answer(layer, ready, request).await {
                Ok(response) => Ok(response),
                Err(Failure::Problem(problem)) => Ok(problem.response()),
                Err(Failure::Service(error)) => Err(error),
            }
        }
        .boxed()
    }
}

async fn answer<S, B, R>(
    layer: Arc<IdempotencyLayer>,
    mut service: S,
    request: Request<B>,
) -> Result<Response<Body>, Failure<S::Error>>
where
    S: Service<Request<Body>, Response = Response<R>, Future: Send, Error: Send + 'static>
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let Some(id) = layer.identify(&parts)? else {
        let request = Request::from_parts(parts, body::pass(body));
        let response = service.call(request).await.map_err(Failure::Service)?;
        return Ok(response.map(body::pass));
    };
    let body = read(body, layer.request_limit).await?;
    let identity = RequestIdentity {
        id,
        fingerprint: Fingerprint::of(&parts, &body),
    };
    let request = Request::from_parts(parts, body::full(body));
    match layer.mode {
        Mode::Transaction => transaction::answer(&layer, identity, request, service).await,
        Mode::Lease => lease::answer(layer, identity, request, service).await,
    }
}

async fn read<B>(body: B, limit: usize) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
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
