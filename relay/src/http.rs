//! What an orchestrator and Prometheus ask: /livez, /readyz, /metrics.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use idem_client::RelayStatus;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpListener, sync::watch};

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
        address: SocketAddr,
        status: watch::Receiver<RelayStatus>,
        metrics: PrometheusHandle,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot bind {address}, the address for health and metrics: see --listen")
        })?;
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
    let code = if is_ready(&status) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, report(&status))
}

fn is_ready(status: &RelayStatus) -> bool {
    // A broker that was never asked is not known to be away.
    let takes_effects = status.broker != Some(false) && status.broker_error.is_none();
    status.database && takes_effects && status.unavailable_topics == 0
}

/// One line for the database, the broker, and each topic whose effects wait.
fn report(status: &RelayStatus) -> String {
    let state = |is_there: bool, error: &Option<String>| match (is_there, error) {
        (true, None) => "ok".to_owned(),
        (true, Some(error)) => format!("cannot take effects: {}", one_line(error)),
        (false, None) => "away".to_owned(),
        (false, Some(error)) => format!("away: {}", one_line(error)),
    };
    let database = state(status.database, &status.database_error);
    let broker = status
        .broker
        .map(|is_there| state(is_there, &status.broker_error));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_without_its_exchange_is_not_ready_and_is_named() {
        let mut status = RelayStatus::default();
        (status.database, status.broker) = (true, Some(true));
        assert!(is_ready(&status));
        status.broker_error = Some("NOT_FOUND - no exchange 'events'".into());
        assert!(!is_ready(&status));
        let report = report(&status);
        assert!(
            report.contains("broker: cannot take effects: NOT_FOUND - no exchange 'events'"),
            "{report}"
        );
    }
}
