//! What an orchestrator and Prometheus ask: /livez, /readyz, /metrics.

use anyhow::{Context, Result};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use idem_client::RelayStatus;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::{TcpListener, ToSocketAddrs},
    sync::watch,
};

/// What the answers are made of.
#[derive(Clone)]
struct Sources {
    status: watch::Receiver<RelayStatus>,
    metrics: PrometheusHandle,
}

/// A server that is bound, and answers once it is run.
pub struct Server {
    listener: TcpListener,
    service: Router,
}

impl Server {
    /// Takes the address, so that a second relay on one machine finds out before it begins.
    pub async fn bind(
        address: impl ToSocketAddrs,
        status: watch::Receiver<RelayStatus>,
        metrics: PrometheusHandle,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .context("the address for health and metrics cannot be had: see --listen")?;
        tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
        let service = Router::new()
            // The process runs and takes requests; nothing else makes it worth a restart.
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics_text))
            .with_state(Sources { status, metrics });
        Ok(Self { listener, service })
    }

    /// Answers for as long as it is polled.
    pub async fn run(self) -> Result<()> {
        Ok(axum::serve(self.listener, self.service).await?)
    }
}

async fn ready(State(sources): State<Sources>) -> (StatusCode, String) {
    let status = sources.status.borrow();
    // A broker that was never asked is not known to be away.
    let code = if status.database && status.broker != Some(false) && status.unavailable_topics == 0 {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, report(&status))
}

/// One line for the database, the broker, and each topic whose effects wait.
fn report(status: &RelayStatus) -> String {
    let state = |is_there: bool, error: &Option<String>| match error {
        Some(error) if !is_there => format!("away: {}", one_line(error)),
        _ if is_there => "ok".to_owned(),
        _ => "away".to_owned(),
    };
    let database = state(status.database, &status.database_error);
    let broker = status.broker.map(|is_there| state(is_there, &status.broker_error));
    let broker = broker.unwrap_or_else(|| "not asked yet".to_owned());
    let mut report = format!("database: {database}\nbroker: {broker}\n");
    for topic in &status.unavailable {
        report += &format!("topic {:?}: {}\n", topic.topic, one_line(&topic.reason));
    }
    let more = status.unavailable_topics - status.unavailable.len();
    if more > 0 {
        report += &format!("and {more} topics more\n");
    }
    report
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

async fn metrics_text(State(sources): State<Sources>) -> String {
    sources.metrics.render()
}
