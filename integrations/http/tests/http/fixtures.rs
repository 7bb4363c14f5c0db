//! Fixtures: a service with the layer, an HTTP client, and a database.
//!
//! Request headers control what the handler does. They are not part of the fingerprint, so the
//! handler can treat a repeated request differently.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::Bytes;
use deadpool_postgres::Pool;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, client::legacy::connect::HttpConnector, rt::TokioExecutor};
use idem_client::{Destination, Effect, send};
use idem_http::{IdempotencyLayer, KeepWrites, REPLAYED, RequestTx, Scope};
use idem_runtime::{Error, lease::LeaseContext};
use idem_testkit::{Database, in_time, until};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};
use tokio_postgres::{Client, types::Type};

pub const DESTINATION: &str = "http.tests";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Transaction,
    Lease,
}

pub const MODES: [Mode; 2] = [Mode::Transaction, Mode::Lease];

pub fn destination() -> Destination {
    Destination::new(DESTINATION).unwrap()
}

/// Returns a layer in which all callers share one set of keys.
pub fn layer(mode: Mode, pool: Pool) -> IdempotencyLayer {
    layer_of(mode, pool, Scope::single_tenant())
}

fn layer_of(mode: Mode, pool: Pool, scope: Scope) -> IdempotencyLayer {
    match mode {
        Mode::Transaction => IdempotencyLayer::transaction(pool, destination(), scope),
        Mode::Lease => IdempotencyLayer::lease(pool, destination(), scope),
    }
}

/// The state of the handler. The test shares it.
#[derive(Clone)]
pub struct App {
    /// A pool for writes outside of the transaction of the request.
    pub pool: Pool,
    pub runs: Arc<AtomicUsize>,
    pub running: Arc<AtomicUsize>,
    /// Handlers of requests with the header x-hold wait. Each permit releases one of them.
    pub gate: Arc<Semaphore>,
    /// The number of external calls to a payment gateway.
    pub charges: Arc<AtomicUsize>,
    pub kept: Arc<std::sync::Mutex<Option<idem_runtime::Tx>>>,
}

impl App {
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            runs: Arc::default(),
            running: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            charges: Arc::default(),
            kept: Arc::default(),
        }
    }

    pub fn router(&self, layer: IdempotencyLayer) -> Router {
        let of_an_account = Router::new()
            .route("/orders", any(handle))
            .layer(layer.clone());
        Router::new()
            .route("/orders", any(handle))
            .route("/others", any(handle))
            .layer(layer)
            .nest("/accounts/{account}", of_an_account)
            .with_state(self.clone())
    }
}

/// Decrements the counter when the handler ends. This includes a panic or a drop of the handler.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn handle(State(app): State<App>, request: Request) -> Response {
    app.running.fetch_add(1, Ordering::SeqCst);
    let _running = Running(Arc::clone(&app.running));
    match work(&app, request).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Inserts two rows and sends one effect. The response contains the number of this run.
async fn work(app: &App, request: Request) -> Result<Response, Error> {
    let run = app.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let headers = request.headers().clone();
    let header = |name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    let tx = request.extensions().get::<RequestTx>().cloned();
    let work_of_lease = request.extensions().get::<Arc<LeaseContext>>().cloned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();

    match &tx {
        Some(tx) => {
            let tx = tx.take()?;
            insert(&tx, &text).await?;
            hold(app, &header).await;
            insert(&tx, &text).await?;
            send(&*tx, &Effect::json("http.facts", &run)?).await?;
            if header("x-fail").is_some() {
                assert!(tx.batch_execute("SELECT 1 / 0").await.is_err());
            }
            if let Some(end) = header("x-end") {
                let ended = tx.batch_execute(&end).await;
                assert_eq!(ended.is_err(), end.starts_with("COMMIT"), "{end}");
                if header("x-ignore-end").is_none() {
                    ended?;
                }
            }
            if header("x-keep-tx").is_some() {
                *app.kept.lock().unwrap() = Some(tx);
            }
        }
        None => {
            if let Some(work) = work_of_lease.filter(|_| header("x-charge").is_some()) {
                let charge = |_key| async {
                    app.charges.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, std::io::Error>("charged".to_owned())
                };
                let charged: Result<String, _> = work.calls().once("charge", &text, charge).await;
                assert_eq!(charged.unwrap(), "charged");
            }
            hold(app, &header).await;
            let client = app.pool.get().await?;
            insert(&client, &text).await?;
            insert(&client, &text).await?;
            send(&**client, &Effect::json("http.facts", &run)?).await?;
        }
    }

    let size: usize = header("x-size").map_or(0, |size| size.parse().unwrap());
    let status: u16 = header("x-status").map_or(201, |status| status.parse().unwrap());
    let response_headers = [
        ("x-run", run.to_string()),
        ("x-other", "kept".into()),
        ("set-cookie", "session=secret".into()),
        ("content-type", "text/plain".into()),
    ];
    let body = format!("run {run}, {text}{}", "x".repeat(size));
    let mut response = (
        StatusCode::from_u16(status).unwrap(),
        response_headers,
        body,
    )
        .into_response();
    if header("x-keep-writes").is_some() {
        response.extensions_mut().insert(KeepWrites);
    }
    Ok(response)
}

async fn hold(app: &App, header: &impl Fn(&str) -> Option<String>) {
    if header("x-hold").is_some() {
        app.gate.acquire().await.unwrap().forget();
    }
}

async fn insert(client: &Client, text: &str) -> Result<u64, tokio_postgres::Error> {
    client
        .execute_typed("INSERT INTO work VALUES ($1)", &[(&text, Type::TEXT)])
        .await
}

/// A service that runs until this value is dropped.
pub struct Server {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start(router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request that can be sent several times.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: Method,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

/// Returns a POST of /orders. Both the idempotency key and the body are `key`.
pub fn ask(key: &str) -> Ask {
    Ask {
        method: Method::POST,
        path: "/orders".into(),
        headers: vec![("idempotency-key".into(), format!("\"{key}\""))],
        body: Bytes::copy_from_slice(key.as_bytes()),
    }
}

impl Ask {
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub fn path(mut self, path: &str) -> Self {
        self.path = path.into();
        self
    }

    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    pub fn without_key(mut self) -> Self {
        self.headers.retain(|(name, _)| name != "idempotency-key");
        self
    }

    pub fn to<B: From<Bytes>>(&self, address: SocketAddr) -> http::Request<B> {
        let mut request = http::Request::builder()
            .method(self.method.clone())
            .uri(format!("http://{address}{}", self.path));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(B::from(self.body.clone())).unwrap()
    }
}

/// A response with its complete body.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn is_replayed(&self) -> bool {
        self.headers
            .get(REPLAYED)
            .is_some_and(|value| value == "true")
    }

    /// Returns the last path segment of the `type` of a problem response.
    pub fn problem(&self) -> String {
        assert_eq!(
            self.headers["content-type"], "application/problem+json",
            "{self:?}"
        );
        let problem: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], json!(self.status.as_u16()));
        assert!(
            !problem["detail"].as_str().unwrap().is_empty()
                && !problem["title"].as_str().unwrap().is_empty()
        );
        problem["type"]
            .as_str()
            .unwrap()
            .strip_prefix("urn:idem:")
            .unwrap()
            .into()
    }

    #[track_caller]
    pub fn assert_problem(&self, status: u16, problem: &str) {
        assert_eq!(
            (self.status.as_u16(), self.problem().as_str()),
            (status, problem),
            "{self:?}"
        );
        let is_transient = matches!(problem, "in-progress" | "unavailable" | "in-doubt");
        assert_eq!(
            self.headers.contains_key("retry-after"),
            is_transient,
            "{self:?}"
        );
    }

    /// Asserts that this response comes from the run of the handler with this number, and is not a
    /// replay.
    #[track_caller]
    pub fn assert_run(&self, status: u16, run: usize) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.headers["x-run"], run.to_string().as_str(), "{self:?}");
        assert!(!self.is_replayed(), "{self:?}");
    }

    /// Asserts that this is a replay of `first`.
    #[track_caller]
    pub fn assert_replay_of(&self, first: &Self) {
        assert!(self.is_replayed(), "{self:?}");
        assert_eq!((self.status, &self.body), (first.status, &first.body));
        assert_eq!(self.headers["x-run"], first.headers["x-run"]);
    }
}

type HttpClient = legacy::Client<HttpConnector, Full<Bytes>>;

pub struct Fixture {
    pub mode: Mode,
    pub database: Database,
    pub observer: Client,
    pub app: App,
    pub server: Server,
    pub client: HttpClient,
}

impl Fixture {
    pub async fn new(mode: Mode) -> Self {
        Self::with(mode, |layer| layer).await
    }

    /// Creates a fixture with options of the layer.
    pub async fn with(
        mode: Mode,
        options: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self {
        let database = Database::create();
        let pool = database.pool(8);
        Self::on(mode, database, pool, options).await
    }

    /// Creates a fixture with a layer that separates tenants. A request header names the tenant.
    pub async fn of_tenants(mode: Mode) -> Self {
        let database = Database::create();
        let layer = layer_of(
            mode,
            database.pool(8),
            Scope::by(|parts| Some(parts.headers.get("x-tenant")?.to_str().ok()?.to_owned())),
        );
        Self::under(mode, database, layer).await
    }

    /// Creates a fixture with a layer that uses `pool`. The handler uses another pool.
    pub async fn on(
        mode: Mode,
        database: Database,
        pool: Pool,
        options: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self {
        Self::under(mode, database, options(layer(mode, pool))).await
    }

    async fn under(mode: Mode, database: Database, layer: IdempotencyLayer) -> Self {
        let observer = database.client().await;
        // The table has no primary key, so that duplicate inserts are visible.
        observer
            .batch_execute("CREATE TABLE IF NOT EXISTS work (id text)")
            .await
            .unwrap();
        let app = App::new(database.pool(8));
        let server = Server::start(app.router(layer)).await;
        Self {
            mode,
            database,
            observer,
            app,
            server,
            client: legacy::Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    pub async fn send(&self, ask: &Ask) -> Answer {
        self.send_to(self.server.address, ask).await
    }

    pub async fn send_to(&self, address: SocketAddr, ask: &Ask) -> Answer {
        let response = in_time(self.client.request(ask.to(address))).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = in_time(body.collect()).await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// Repeats the request until the response is not "in progress".
    pub async fn send_until_settled(&self, ask: &Ask) -> Answer {
        let deadline = std::time::Instant::now() + idem_testkit::DEADLINE;
        loop {
            let response = self.send(ask).await;
            if response.status != StatusCode::CONFLICT || response.problem() != "in-progress" {
                return response;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{ask:?} stays in progress"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn runs(&self) -> usize {
        self.app.runs.load(Ordering::SeqCst)
    }

    /// Waits until exactly `count` handlers are running.
    pub async fn until_running(&self, count: usize) {
        until("the expected number of handlers runs", || async {
            self.app.running.load(Ordering::SeqCst) == count
        })
        .await;
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.observer.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Returns the number of rows that handlers inserted for requests with this body.
    pub async fn work(&self, body: &str) -> i64 {
        let sql = "SELECT count(*) FROM work WHERE id = $1";
        self.observer.query_one(sql, &[&body]).await.unwrap().get(0)
    }

    pub async fn sent(&self) -> i64 {
        self.count("SELECT count(*) FROM idem.outbox_row WHERE topic = 'http.facts'")
            .await
    }

    pub async fn claims(&self) -> i64 {
        self.count(&format!(
            "SELECT count(*) FROM idem.inbox WHERE destination = '{DESTINATION}'"
        ))
        .await
    }

    /// Asserts that the database contains no effect of any request.
    pub async fn assert_untouched(&self) {
        assert_eq!(
            (
                self.count("SELECT count(*) FROM work").await,
                self.sent().await,
                self.claims().await
            ),
            (0, 0, 0)
        );
    }

    /// Waits until all sessions except that of the observer are idle and outside of transactions.
    pub async fn until_quiet(&self) {
        until("no session is in a transaction", || async {
            self.count(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND backend_type = 'client backend'
                 AND pid <> pg_backend_pid() AND state <> 'idle'",
            )
            .await
                == 0
        })
        .await;
    }
}
