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
    let code = if status.database && status.broker != Some(false) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let say = |is_there| if is_there { "ok" } else { "away" };
    let broker = status.broker.map_or("not asked yet", say);
    (code, format!("database: {}\nbroker: {broker}\n", say(status.database)))
}

async fn metrics_text(State(sources): State<Sources>) -> String {
    sources.metrics.render()
}
