//! The layer and its options.

use std::{fmt, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use http::{HeaderName, Method, header, request::Parts};
use idem_client::{Destination, MessageId};
use idem_runtime::transaction::{LONGEST_LEASE, SHORTEST_LEASE};

use crate::{RunningRequests, Scope, key, problem::Problem};

/// How a request is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the transaction that claims the request and records the response.
    Transaction,
    /// Under a lease.
    Lease,
}

type KeepHeader = Arc<dyn Fn(&HeaderName) -> bool + Send + Sync>;

/// A layer that makes each HTTP request with an `Idempotency-Key` take effect once. See the
/// [crate](crate).
///
/// All requests of one layer have one destination, and layers of the same destination share their
/// keys. Within a destination each caller has its own keys, as defined by the [`Scope`]. A layer
/// without a scope does not compile, because two tenants with the same key would get each other's
/// responses:
///
/// ```compile_fail
/// # use idem_client::Destination;
/// # use idem_http::IdempotencyLayer;
/// fn layer(pool: deadpool_postgres::Pool, destination: Destination) -> IdempotencyLayer {
///     IdempotencyLayer::transaction(pool, destination)
/// }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    pub(crate) mode: Mode,
    pub(crate) pool: Pool,
    pub(crate) destination: Destination,
    methods: Vec<Method>,
    is_required: bool,
    scope: Scope,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) keep_header: KeepHeader,
    pub(crate) lease: Duration,
    pub(crate) running: RunningRequests,
}

impl IdempotencyLayer {
    /// Creates a layer in which the handler works in the transaction that claims the request. The
    /// handler takes this transaction from a [`RequestTx`](crate::RequestTx) in the
    /// extensions of the request. The writes of the handler and the recorded response commit
    /// together or not at all.
    pub fn transaction(pool: Pool, destination: Destination, scope: Scope) -> Self {
        Self::new(Mode::Transaction, pool, destination, scope)
    }

    /// Creates a layer that leases the request, for work that cannot share a transaction. The
    /// handler finds an `Arc` of a [`LeaseContext`](idem_runtime::lease::LeaseContext) in the
    /// extensions of the request, with the journal of its external calls. The response is recorded
    /// when the lease is completed.
    ///
    /// The handler runs in a task of its own, in the tokio runtime in which the service is called.
    /// The handler continues when the client disconnects, so wait for running handlers at a
    /// [shutdown](Self::running).
    pub fn lease(pool: Pool, destination: Destination, scope: Scope) -> Self {
        Self::new(Mode::Lease, pool, destination, scope)
    }

    /// Returns the leased requests that are being processed. Wait for them at a shutdown:
    ///
    /// ```no_run
    /// # async fn serve(
    /// #     once: idem_http::IdempotencyLayer, listener: tokio::net::TcpListener,
    /// #     service: axum::Router,
    /// # ) -> Result<(), std::io::Error> {
    /// use std::time::Duration;
    ///
    /// let running = once.running();
    /// axum::serve(listener, service.layer(once))
    ///     .with_graceful_shutdown(idem_runtime::terminated())
    ///     .await?;
    /// running.ended(Duration::from_secs(30)).await;
    /// # Ok(()) }
    /// ```
    pub fn running(&self) -> RunningRequests {
        self.running.clone()
    }

    /// Sets how long a request is leased: 100 milliseconds to one day; 30 seconds by default. The
    /// lease is renewed while the handler works. After a crash of the process, a repeated request
    /// gets status 409 until the lease ends.
    pub fn lease_for(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(SHORTEST_LEASE, LONGEST_LEASE);
        self
    }

    /// Sets the methods of protected requests; POST and PATCH by default. Requests with other
    /// methods pass through.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Sets whether a request with a protected method must have a key; true by default. If true, a
    /// request without a key gets status 400. If false, such a request passes through unprotected,
    /// and its extensions contain no transaction and no lease.
    pub fn required(mut self, is_required: bool) -> Self {
        self.is_required = is_required;
        self
    }

    /// Sets the largest body of a protected request, in bytes; 1 MiB by default. A larger request
    /// gets status 413. The whole body is held in memory.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.request_limit = bytes;
        self
    }

    /// Sets the largest body of a recorded response, in bytes; 1 MiB by default. The whole body is
    /// held in memory and stored in the database as long as the claim. A larger response is
    /// replaced by status 500, and nothing is recorded.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.response_limit = bytes;
        self
    }

    /// Sets which response headers are recorded; all but `Set-Cookie` by default. Headers that
    /// belong to one connection or one moment, such as `Connection` and `Date`, are never recorded.
    pub fn keep_headers(
        mut self,
        is_kept: impl Fn(&HeaderName) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.keep_header = Arc::new(is_kept);
        self
    }

    fn new(mode: Mode, pool: Pool, destination: Destination, scope: Scope) -> Self {
        Self {
            mode,
            pool,
            destination,
            methods: vec![Method::POST, Method::PATCH],
            is_required: true,
            scope,
            request_limit: 1 << 20,
            response_limit: 1 << 20,
            // A cookie may identify a session, so a replayed response contains no cookie.
            keep_header: Arc::new(|name| name != header::SET_COOKIE),
            lease: Duration::from_secs(30),
            running: RunningRequests::default(),
        }
    }

    /// Returns the id of the request, or `None` if the request is not protected.
    pub(crate) fn identify(&self, parts: &Parts) -> Result<Option<MessageId>, Problem> {
        if !self.methods.contains(&parts.method) {
            return Ok(None);
        }
        let Some(key) = key::of(&parts.headers)? else {
            return match self.is_required {
                true => Err(Problem::MissingKey),
                false => Ok(None),
            };
        };
        self.scope.id_of(parts, key).map(Some)
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("mode", &self.mode)
            .field("destination", &self.destination)
            .field("methods", &self.methods)
            .field("is_required", &self.is_required)
            .field("scope", &self.scope)
            .field("request_limit", &self.request_limit)
            .field("response_limit", &self.response_limit)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
