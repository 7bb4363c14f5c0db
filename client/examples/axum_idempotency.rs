//! An axum service whose requests take effect once, with both modes of the layer: orders are placed
//! in the transaction that claims their request, and payments are charged at a gateway, which
//! shares no transaction, under a lease.
//!
//! `cargo run -p idem-client --features http --example axum_idempotency -- "host=/run/postgresql
//! user=postgres"`, in a database with the extension, then twice `curl -i -H 'idempotency-key:
//! "4711"' -H 'x-account: 7' -d 'boots' http://127.0.0.1:PORT/orders`.

use std::{env, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use deadpool_postgres::{Config, Runtime};
use idem_client::{
    Destination, Effect,
    http::{IdempotencyLayer, RequestTx, Scope},
    lease::Work,
    send,
};
use tokio::{net::TcpListener, signal::unix::SignalKind};
use tokio_postgres::NoTls;
use uuid::Uuid;

/// What failed may succeed when it is repeated: 5xx is never recorded.
struct Failure(Box<dyn std::error::Error + Send + Sync>);

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, self.0.to_string()).into_response()
    }
}

/// The order, the message about it and this response: one commit.
async fn place(
    Extension(tx): Extension<RequestTx>,
    item: String,
) -> Result<(StatusCode, String), Failure> {
    if item.is_empty() {
        return Ok((
            StatusCode::UNPROCESSABLE_ENTITY,
            "nothing is ordered".into(),
        ));
    }
    let tx = tx.take()?;
    let order = Uuid::new_v4();
    tx.execute(
        "INSERT INTO orders (id, item) VALUES ($1, $2)",
        &[&order, &item],
    )
    .await?;
    send(
        &*tx,
        &Effect::json("orders.placed", &item)?.message_id(order),
    )
    .await?;
    Ok((StatusCode::CREATED, order.to_string()))
}

/// The gateway is asked once, under a key of its own that is the same for each attempt.
async fn pay(
    Extension(work): Extension<Arc<Work>>,
    amount: String,
) -> Result<(StatusCode, String), Failure> {
    let cents: i64 = amount.parse()?;
    let receipt: String = work
        .calls()
        .once("charge", &cents, |key| charge(key, cents))
        .await?;
    Ok((StatusCode::CREATED, receipt))
}

/// Stands for a card gateway that honours keys.
async fn charge(key: String, cents: i64) -> Result<String, std::io::Error> {
    Ok(format!("{cents} charged, {key}"))
}

/// A real service takes the account from what it has authenticated.
fn account(parts: &Parts) -> Option<String> {
    Some(parts.headers.get("x-account")?.to_str().ok()?.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::args()
        .nth(1)
        .ok_or("give a connection string as the only argument")?;
    let pool = Config {
        url: Some(url),
        ..Config::default()
    }
    .create_pool(Some(Runtime::Tokio1), NoTls)?;
    let client = pool.get().await?;
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, item text NOT NULL)",
        )
        .await?;
    let (orders, payments) = (
        Destination::new("shop.place-order")?,
        Destination::new("shop.pay")?,
    );
    for destination in [&orders, &payments] {
        // So long a key is known.
        idem_client::configure(&**client, destination, Duration::from_secs(24 * 3600)).await?;
    }
    drop(client);

    let in_transaction = IdempotencyLayer::transaction(pool.clone(), orders, Scope::by(account));
    let leased = IdempotencyLayer::lease(pool, payments, Scope::by(account));
    let running = leased.running();
    let service = Router::new()
        .route("/orders", post(place).layer(in_transaction))
        .route("/payments", post(pay).layer(leased));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut terminate = tokio::signal::unix::signal(SignalKind::terminate())?;
    axum::serve(listener, service)
        .with_graceful_shutdown(async move {
            terminate.recv().await;
        })
        .await?;
    // Work whose caller has left is done and recorded before the process ends.
    running.ended(Duration::from_secs(30)).await;
    Ok(())
}
