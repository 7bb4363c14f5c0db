//! Connects idem with `tower` services: a layer above a handler service, and a handler that is a
//! service.
//!
//! Limits, timeouts and tracing of the user can be added above or below [`IdemLayer`]. Above it,
//! they apply to the whole processing of a message, with its transaction and retries. Below it,
//! they apply to one attempt of the handler.

use std::{
    fmt,
    future::Future,
    mem,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};

use deadpool_postgres::Pool;
use futures_util::{FutureExt, future::BoxFuture};
use idem_client::Effect;
use tower::{Layer, Service, ServiceExt};

use crate::{Error, Handled, HandlerError, Idem, Message, Processed, Tx};

/// The request of a handler that is a service: a message, and the transaction that protects it.
pub struct Protected {
    /// The transaction. Must be dropped before the service returns.
    pub tx: Tx,
    /// The message.
    pub message: Message,
}

impl fmt::Debug for Protected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protected")
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}

/// Converts a service of [`Protected`] messages into a service of messages, where each message
/// takes effect once.
///
/// If the future of the service is dropped, for example by a timeout above it, either everything or
/// nothing was committed. After a lost conflict or connection, the handler is called again if its
/// service is ready at once. Processing does not wait until the service is ready, because the
/// transaction is open meanwhile. If the service is not ready, this attempt fails.
///
/// ```
/// use idem_client::Effect;
/// use idem_runtime::{HandlerError, Idem, layer::{IdemLayer, Protected}};
/// use tower::{ServiceBuilder, service_fn};
///
/// # fn pipeline(pool: deadpool_postgres::Pool) {
/// let service = ServiceBuilder::new()
///     .concurrency_limit(64)
///     .layer(IdemLayer::new(Idem::new(), pool))
///     .service(service_fn(|Protected { tx, message }| async move {
///         tx.execute("INSERT INTO seen (topic) VALUES ($1)", &[&message.topic()]).await?;
///         Ok::<_, tokio_postgres::Error>(Vec::<Effect>::new())
///     }));
/// # let _ = service;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct IdemLayer {
    idem: Idem,
    pool: Pool,
}

impl IdemLayer {
    /// Creates a layer that takes its connections from `pool`.
    pub fn new(idem: Idem, pool: Pool) -> Self {
        Self { idem, pool }
    }
}

impl<S> Layer<S> for IdemLayer {
    type Service = IdemService<S>;

    fn layer(&self, inner: S) -> IdemService<S> {
        IdemService {
            idem: self.idem.clone(),
            pool: self.pool.clone(),
            inner,
        }
    }
}

/// The service that [`IdemLayer`] creates.
#[derive(Clone, Debug)]
pub struct IdemService<S> {
    idem: Idem,
    pool: Pool,
    inner: S,
}

impl<S> Service<Message> for IdemService<S>
where
    S: Service<Protected, Response = Vec<Effect>> + Clone + Send + 'static,
    S::Error: Into<HandlerError>,
    S::Future: Send,
{
    type Response = Processed;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Processed, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner
            .poll_ready(cx)
            .map_err(|error| Error::Handler(error.into()))
    }

    fn call(&mut self, message: Message) -> Self::Future {
        let later = self.inner.clone();
        // The instance that reported to be ready must be called. Its clone may not be ready.
        let ready = mem::replace(&mut self.inner, later.clone());
        let attempts = Attempts(Mutex::new(Upcoming {
            ready: Some(ready),
            later,
        }));
        let (idem, pool) = (self.idem.clone(), self.pool.clone());
        async move {
            idem.process(&pool, &message, |tx, message| {
                attempts.next(Protected { tx, message })
            })
            .await
        }
        .boxed()
    }
}

/// The services for the attempts at one message. A lock is needed, because a handler is called
/// through a shared reference and a service through `&mut self`.
struct Attempts<S>(Mutex<Upcoming<S>>);

struct Upcoming<S> {
    ready: Option<S>,
    later: S,
}

impl<S> Attempts<S>
where
    S: Service<Protected, Response = Vec<Effect>> + Clone + Send,
    S::Error: Into<HandlerError>,
    S::Future: Send,
{
    fn next(&self, request: Protected) -> impl Future<Output = Handled> + Send + use<S> {
        let (ready, mut later) = {
            let mut upcoming = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (upcoming.ready.take(), upcoming.later.clone())
        };
        // The service is called here and not in the future, so that this attempt uses the capacity
        // that the service has reserved, for example in a concurrency limit, or frees it.
        let handled = match ready {
            Some(mut service) => Ok(service.call(request)),
            // Do not wait until the service is ready: the task that holds its capacity may be
            // waiting for the connection that this task holds.
            None => match later.ready().now_or_never() {
                Some(Ok(service)) => Ok(service.call(request)),
                Some(Err(error)) => Err(error.into()),
                None => Err(Error::Pool(
                    "the handler's service is not ready for another attempt".into(),
                )
                .into()),
            },
        };
        async move {
            match handled {
                Ok(handled) => handled.await.map_err(Into::into),
                Err(error) => Err(error),
            }
        }
    }
}

/// Converts a service into a handler, for [`Idem::process`] and the consumer.
///
/// The transaction is open while the handler waits for the service.
pub fn service_handler<S>(
    service: S,
) -> impl Fn(Tx, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static
where
    S: Service<Protected, Response = Vec<Effect>> + Clone + Send + 'static,
    S::Error: Into<HandlerError>,
    S::Future: Send,
{
    // A service that is not `Sync` can be cloned behind a lock only.
    let service = Mutex::new(service);
    move |tx, message| {
        let service = service
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let handled = service.oneshot(Protected { tx, message });
        async move { handled.await.map_err(Into::into) }.boxed()
    }
}
