//! An axum service that sends messages through the outbox. An order and its message commit
//! together, and no broker has to be available. `idem-relay` publishes the message.
//!
//! Start it with the connection string of a database that has the extension:
//!
//! ```sh
//! cargo run -p idem-client --example axum_outbox -- "host=/run/postgresql user=postgres"
//! ```
//!
//! Then place an order:
//!
//! ```sh
//! curl -i -H 'content-type: application/json' -d '{"item": "boots", "pairs": 2}' \
//!     http://127.0.0.1:PORT/orders
//! ```

use std::env;

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use deadpool_postgres::{Config, Pool, Runtime};
use idem_client::{Effect, Error, send};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, signal::unix::SignalKind};
use tokio_postgres::NoTls;
use uuid::Uuid;

#[derive(Deserialize, Serialize)]
struct Order {
    item: String,
    pairs: i32,
}

#[derive(Serialize)]
struct Placed {
    order: Uuid,
    message: Uuid,
}

async fn place(
    pool: &Pool,
    order: &Order,
) -> Result<Placed, Box<dyn std::error::Error + Send + Sync>> {
    let id = Uuid::new_v4();
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    tx.execute(
        "INSERT INTO orders (id, item, pairs) VALUES ($1, $2, $3)",
        &[&id, &order.item, &order.pairs],
    )
    .await?;
    // The business id is the message id, so consumers recognize a message that a relay publishes
    // more than once.
    let placed = Effect::json("orders.placed", order)?
        .key(id.to_string())
        .message_type("OrderPlaced")
        .message_id(id);
    let message = send(&*tx, &placed).await?;
    tx.commit().await.map_err(Error::of_commit)?;
    Ok(Placed { order: id, message })
}

async fn orders(
    State(pool): State<Pool>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Placed>), (StatusCode, String)> {
    match place(&pool, &order).await {
        Ok(placed) => Ok((StatusCode::CREATED, Json(placed))),
        // This is also the response after an ambiguous commit: the client does not know whether the
        // order was placed, and retries.
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
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
    pool.get()
        .await?
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS orders \
             (id uuid PRIMARY KEY, item text NOT NULL, pairs int4 NOT NULL)",
        )
        .await?;

    let service = Router::new()
        .route("/orders", post(orders))
        .with_state(pool);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut terminate = tokio::signal::unix::signal(SignalKind::terminate())?;
    axum::serve(listener, service)
        .with_graceful_shutdown(async move {
            terminate.recv().await;
        })
        .await?;
    Ok(())
}
