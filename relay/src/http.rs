//! The HTTP server for an orchestrator and Prometheus: /livez, /readyz and /metrics.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use idem_runtime::relay::RelayStatus;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

/// The largest number of connections. The relay needs the other descriptors of the process.
const CONNECTIONS: usize = 32;

/// The longest time of a connection, which serves one request.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The sources of the responses.
#[derive(Clone)]
struct Sources {
    status: watch::Receiver<RelayStatus>,
    metrics: PrometheusHandle,
}

/// A server that is bound to its address. It responds while [`run`](Self::run) is polled.
pub struct Server {
    listener: TcpListener,
    service: Router,
}

impl Server {
    /// Binds the address, so that a second relay on the same machine fails before it starts.
    pub async fn bind(
        address: SocketAddr,
        status: watch::Receiver<RelayStatus>,
        metrics: PrometheusHandle,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot bind {address} for health and metrics: use another --listen address")
        })?;
        tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
        let service = Router::new()
            // /livez only checks that the process responds, because a restart would solve no other
            // problem.
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics_text))
            .with_state(Sources { status, metrics });
        Ok(Self { listener, service })
    }

    /// Serves requests without end. A client that sends or reads slowly holds one of the
    /// connections for at most [`TIME_LIMIT`].
    pub async fn run(self) -> Infallible {
        let service = TowerToHyperService::new(self.service);
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let permit = Arc::clone(&free).acquire_owned().await;
            let Ok((stream, _)) = self.listener.accept().await else {
                // The client is gone, or the process has no free descriptor now.
                sleep(Duration::from_secs(1)).await;
                continue;
            };
            let serving = http1::Builder::new()
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service.clone());
            tokio::spawn(async move {
                let _permit = permit;
                // An error means that the client did not send a request or is gone.
                let _ = timeout(TIME_LIMIT, serving).await;
            });
        }
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
    // Before the first effect the state of the broker is not known. The relay counts as ready then.
    let takes_effects = status.broker != Some(false) && status.broker_error.is_none();
    status.database && takes_effects && status.unavailable_topics == 0
}

/// Returns the text for `/readyz`: one line for the database, one for the broker, and one for each
/// topic with waiting effects.
fn report(status: &RelayStatus) -> String {
    let state = |is_there: bool, error: &Option<String>| match (is_there, error) {
        (true, None) => "ok".to_owned(),
        (true, Some(error)) => format!("cannot accept effects: {}", one_line(error)),
        (false, None) => "not available".to_owned(),
        (false, Some(error)) => format!("not available: {}", one_line(error)),
    };
    let database = state(status.database, &status.database_error);
    let broker = status
        .broker
        .map(|is_there| state(is_there, &status.broker_error));
    let broker = broker.unwrap_or_else(|| "not used yet".to_owned());
    let mut report = format!("database: {database}\nbroker: {broker}\n");
    for topic in &status.unavailable {
        report += &format!("topic {:?}: {}\n", topic.topic, one_line(&topic.reason));
    }
    let more = status.unavailable_topics - status.unavailable.len();
    if more > 0 {
        report += &format!("and {more} more topics\n");
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
    fn missing_exchange_is_not_ready_and_is_in_the_report() {
        let mut status = RelayStatus::default();
        (status.database, status.broker) = (true, Some(true));
        assert!(is_ready(&status));
        status.broker_error = Some("NOT_FOUND - no exchange 'events'".into());
        assert!(!is_ready(&status));
        let report = report(&status);
        assert!(
            report.contains("broker: cannot accept effects: NOT_FOUND - no exchange 'events'"),
            "{report}"
        );
    }
}
