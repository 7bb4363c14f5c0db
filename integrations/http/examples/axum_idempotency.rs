//! An axum service that processes each request once, with both modes of the layer. An order is
//! placed in the transaction that claims its request. A payment is charged by a gateway, which
//! cannot take part in the transaction, so its request is leased.
//!
//! Start it with the connection string of a database that has the extension:
//!
//! ```sh
//! cargo run -p idem-http --features axum --example axum_idempotency -- \
//!     "host=/run/postgresql user=postgres"
//! ```
//!
//! Then send the same request twice:
//!
//! ```sh
//! curl -i -H 'idempotency-key: "4711"' -H 'x-account: 7' -d 'boots' http://127.0.0.1:PORT/orders
//! ```

use std::{env, time::Duration};

use axum::{
    Router,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use deadpool_postgres::{Config, Runtime};
use idem_client::{Destination, Effect, send};
use idem_http::{IdempotencyLayer, InTransaction, Scope, UnderLease};
use tokio::{net::TcpListener, signal::unix::SignalKind};
use tokio_postgres::NoTls;
use uuid::Uuid;

/// An error that a retry can solve. Its response is 503, because a 5xx response is never recorded.
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

/// Places an order. The order, its message and the response commit together.
async fn place(
    InTransaction(tx): InTransaction,
    item: String,
) -> Result<(StatusCode, String), Failure> {
    if item.is_empty() {
        return Ok((
            StatusCode::UNPROCESSABLE_ENTITY,
            "the order contains no item".into(),
        ));
    }
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

/// Charges a payment. The gateway executes one charge, because each attempt has the same key.
async fn pay(
    UnderLease(work): UnderLease,
    amount: String,
) -> Result<(StatusCode, String), Failure> {
    let cents: i64 = amount.parse()?;
    let receipt: String = work
        .calls()
        .once("charge", &cents, |key| charge(key, cents))
        .await?;
    Ok((StatusCode::CREATED, receipt))
}

/// Stands for the client of a card gateway that supports idempotency keys.
async fn charge(key: String, cents: i64) -> Result<String, std::io::Error> {
    Ok(format!("{cents} charged, {key}"))
}

/// Returns the account of a request. A real service uses the authenticated account.
fn account(parts: &Parts) -> Option<String> {
    Some(parts.headers.get("x-account")?.to_str().ok()?.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::args()
        .nth(1)
        .ok_or("required argument: a connection string")?;
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
    // The time for which a key is remembered.
    client
        .batch_execute(
            "SELECT idem_configure('shop.place-order', '24 hours'),
                    idem_configure('shop.pay', '24 hours')",
        )
        .await?;
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
    // Requests of clients that have disconnected are completed and recorded before the process
    // ends.
    running.ended(Duration::from_secs(30)).await;
    Ok(())
}
