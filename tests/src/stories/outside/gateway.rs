//! A gateway that charges cards, and honours idempotency keys.

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

/// What is to be charged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Whose.
    pub reference: String,
    /// How much.
    pub cents: u32,
}

/// What was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Its number at the gateway.
    pub charge: usize,
}

/// The gateway. It charges for every key once, and answers the same to whoever shows the key again.
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
    /// Opens it: `POST /charges` with a header `Idempotency-Key`.
    pub async fn open() -> Result<Self> {
        let books = Arc::new(Mutex::default());
        let app = Router::new()
            .route("/charges", post(charge))
            .with_state(Arc::clone(&books));
        let web = Web::serve(app).await?;
        Ok(Self { books, web })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.web.address
    }

    /// How often this was charged.
    #[must_use]
    pub fn charges(&self, reference: &str) -> usize {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books
            .charges
            .iter()
            .filter(|order| order.reference == reference)
            .count()
    }

    /// How often somebody came with a key that was known.
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
