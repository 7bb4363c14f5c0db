//! A payment gateway that charges cards and supports idempotency keys.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde::{Deserialize, Serialize};

use super::web::Web;

/// The request for a charge.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The reference that the customer has chosen.
    pub reference: String,
    /// The amount in cents.
    pub cents: u32,
}

/// The response to a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The number of the charge at the gateway.
    pub charge: usize,
}

/// The gateway. It charges once for every key, and returns the same response to each later request
/// with that key.
pub struct Gateway {
    books: Arc<Mutex<Books>>,
    web: Web,
}

#[derive(Default)]
struct Books {
    charges: Vec<Order>,
    by_key: HashMap<String, Charge>,
    repeats: usize,
}

impl Gateway {
    /// Starts the service: `POST /charges` with a header `Idempotency-Key`.
    pub async fn open() -> Result<Self> {
        let books = Arc::new(Mutex::default());
        let app = Router::new()
            .route("/charges", post(charge))
            .with_state(Arc::clone(&books));
        let web = Web::serve(app).await?;
        Ok(Self { books, web })
    }

    /// Returns the address of the service.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.web.address
    }

    /// Returns the number of charges with this reference.
    #[must_use]
    pub fn charges(&self, reference: &str) -> usize {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books
            .charges
            .iter()
            .filter(|order| order.reference == reference)
            .count()
    }

    /// Returns the number of requests with a key that was already used.
    #[must_use]
    pub fn repeats(&self) -> usize {
        self.books
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .repeats
    }
}

async fn charge(
    State(books): State<Arc<Mutex<Books>>>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<Json<Charge>, StatusCode> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let key = key.ok_or(StatusCode::BAD_REQUEST)?;
    let mut books = books.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(charge) = books.by_key.get(key).copied() {
        books.repeats += 1;
        return Ok(Json(charge));
    }
    let charge = Charge {
        charge: books.charges.len(),
    };
    books.charges.push(order);
    books.by_key.insert(key.to_owned(), charge);
    Ok(Json(charge))
}
