//! A carrier service without idempotency keys, which can be queried for bookings.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use serde::{Deserialize, Serialize};

use super::web::Web;

/// The booking of a parcel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    /// The reference that the customer has chosen.
    pub reference: String,
}

/// The carrier. Every booking creates a new parcel, even with a reference that was already used.
pub struct Carrier {
    books: Books,
    web: Web,
}

type Books = Arc<Mutex<Vec<Booking>>>;

impl Carrier {
    /// Starts the service: `POST /bookings` creates a booking, and `GET /bookings/{reference}`
    /// returns a booking.
    pub async fn open() -> Result<Self> {
        let books = Books::default();
        let app = Router::new()
            .route("/bookings", post(book))
            .route("/bookings/{reference}", get(find))
            .with_state(Arc::clone(&books));
        let web = Web::serve(app).await?;
        Ok(Self { books, web })
    }

    /// Returns the address of the service.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.web.address
    }

    /// Returns the number of bookings with this reference.
    #[must_use]
    pub fn bookings(&self, reference: &str) -> usize {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books
            .iter()
            .filter(|booking| booking.reference == reference)
            .count()
    }
}

async fn book(State(books): State<Books>, Json(booking): Json<Booking>) -> Json<Booking> {
    books
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(booking.clone());
    Json(booking)
}

async fn find(
    State(books): State<Books>,
    Path(reference): Path<String>,
) -> Result<Json<Booking>, StatusCode> {
    let books = books.lock().unwrap_or_else(PoisonError::into_inner);
    let found = books.iter().find(|booking| booking.reference == reference);
    found.cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}
