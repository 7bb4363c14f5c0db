//! The layer and its options.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use http::{HeaderName, Method, StatusCode};
use tower::Layer;

use crate::{
    Destination,
    http::{
        IdempotencyService, RunningRequests, Scope,
        options::{Mode, Options},
    },
    policy::{LONGEST_LEASE, SHORTEST_LEASE},
};

/// The header that says `true` in a response that was recorded before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Makes a service of HTTP requests in which each `Idempotency-Key` takes effect once. See the
/// [module](crate::http).
///
/// The requests of one layer are those of one destination: layers of the same destination share the
/// keys. Within it each caller has its own, as the [`Scope`] says. A layer without one does not
/// compile, because two tenants with the same key would get each other's responses:
///
/// ```compile_fail
/// # use idem_client::{Destination, http::IdempotencyLayer};
/// fn layer(pool: deadpool_postgres::Pool, destination: Destination) -> IdempotencyLayer {
///     IdempotencyLayer::transaction(pool, destination)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct IdempotencyLayer {
    options: Options,
}

impl IdempotencyLayer {
    /// The handler works in the transaction that claims the request: it takes it from a
    /// [`RequestTx`](crate::http::RequestTx) in the request's extensions. What it writes there and
    /// its response commit together, or neither does.
    pub fn transaction(pool: Pool, destination: Destination, scope: Scope) -> Self {
        Self {
            options: Options::new(Mode::Transaction, pool, destination, scope),
        }
    }

    /// The request is leased, for work that shares no transaction: the handler finds an `Arc` of a
    /// [`Work`](crate::lease::Work) in the request's extensions, with the journal of its calls. Its
    /// response is recorded together with the completion.
    ///
    /// It works on a task of its own, in the runtime of tokio that the service is called in, and is
    /// not stopped when its caller goes away: wait for it at a [shutdown](Self::running).
    pub fn lease(pool: Pool, destination: Destination, scope: Scope) -> Self {
        Self {
            options: Options::new(Mode::Lease, pool, destination, scope),
        }
    }

    /// The leased requests that are being worked on, to wait for at a shutdown:
    ///
    /// ```no_run
    /// # async fn serve(once: idem_client::http::IdempotencyLayer, listener: tokio::net::TcpListener, service: axum::Router)
    /// # -> Result<(), std::io::Error> {
    /// use std::time::Duration;
    ///
    /// let running = once.running();
    /// axum::serve(listener, service.layer(once))
    ///     .with_graceful_shutdown(idem_client::terminated())
    ///     .await?;
    /// running.ended(Duration::from_secs(30)).await;
    /// # Ok(()) }
    /// ```
    pub fn running(&self) -> RunningRequests {
        self.options.running.clone()
    }

    /// For how long a request is leased: 30 seconds, unless said otherwise. It is renewed while the
    /// handler works; this is how long a key stays in progress whose process has died. At least 100
    /// milliseconds and at most a day.
    pub fn lease_for(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(SHORTEST_LEASE, LONGEST_LEASE);
        self
    }

    /// The methods whose requests are protected: POST and PATCH, unless said otherwise. Others pass
    /// through.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.options.methods = methods.into_iter().collect();
        self
    }

    /// Whether a request of these methods must have a key, and gets 400 without one. It must,
    /// unless said otherwise; where it need not, a request without a key passes through
    /// unprotected, and finds nothing in its extensions.
    pub fn required(mut self, is_required: bool) -> Self {
        self.options.is_required = is_required;
        self
    }

    /// How large the body of a protected request may be, in bytes; a larger one gets 413. 1 MiB,
    /// unless said otherwise: it is held in memory as a whole.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.options.request_limit = bytes;
        self
    }

    /// How large the body of a response may be that is recorded, in bytes. 1 MiB, unless said
    /// otherwise: it is held in memory as a whole and kept in the database as long as the claim. A
    /// larger one is not passed on but becomes a 500, and nothing is recorded.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.options.response_limit = bytes;
        self
    }

    /// Which statuses are recorded, among 2xx, 3xx and 4xx without 409 and 429. All of these,
    /// unless said otherwise; none but these, whatever this says. What is not recorded takes no
    /// effect, and the next request with this key runs.
    pub fn keep_statuses(
        mut self,
        is_kept: impl Fn(StatusCode) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.keep_status = Arc::new(is_kept);
        self
    }

    /// Which headers of a response are recorded. All but `Set-Cookie`, unless said otherwise; never
    /// those that belong to one connection or moment, such as `Connection` and `Date`.
    pub fn keep_headers(
        mut self,
        is_kept: impl Fn(&HeaderName) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.keep_header = Arc::new(is_kept);
        self
    }

    /// What `Retry-After` says, in whole seconds. One second, unless said otherwise.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.options.retry_after = retry_after;
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService::new(Arc::new(self.options.clone()), inner)
    }
}
