//! An external service over HTTP. It cannot take part in a transaction, and it records every request
//! that it has executed.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, task::JoinHandle};

/// A request, and its response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The reference that the customer has chosen.
    pub reference: String,
}

/// A card gateway and a carrier, which stop when this value is dropped.
///
/// - `POST /charges` charges a card once for every `Idempotency-Key`.
/// - `POST /bookings` books a new parcel, even with a reference that was already used. `GET
///   /bookings/{reference}` returns a booking.
pub struct Service {
    books: Books,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

#[derive(Clone, Default)]
struct Books(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    done: Vec<Order>,
    keys: HashSet<String>,
    repeats: usize,
}

impl Books {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    pub async fn open() -> Result<Self> {
        let books = Books::default();
        let app = Router::new()
            .route("/charges", post(charge))
            .route("/bookings", post(book))
            .route("/bookings/{reference}", get(find))
            .with_state(books.clone());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            // The server runs until it is aborted. Errors of a connection are visible to the
            // client only.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self {
            books,
            address,
            serving,
        })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of charges and bookings with this reference.
    #[must_use]
    pub fn done(&self, reference: &str) -> usize {
        let books = self.books.lock();
        let of = books
            .done
            .iter()
            .filter(|order| order.reference == reference);
        of.count()
    }

    /// Returns the number of requests with a key that was already used.
    #[must_use]
    pub fn repeats(&self) -> usize {
        self.books.lock().repeats
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn charge(
    State(books): State<Books>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<Json<Order>, StatusCode> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let key = key.ok_or(StatusCode::BAD_REQUEST)?;
    let mut books = books.lock();
    if books.keys.insert(key.to_owned()) {
        books.done.push(order.clone());
    } else {
        books.repeats += 1;
    }
    Ok(Json(order))
}

async fn book(State(books): State<Books>, Json(order): Json<Order>) -> Json<Order> {
    books.lock().done.push(order.clone());
    Json(order)
}

async fn find(
    State(books): State<Books>,
    Path(reference): Path<String>,
) -> Result<Json<Order>, StatusCode> {
    let books = books.lock();
    let found = books.done.iter().find(|order| order.reference == reference);
    found.cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}
