//! A carrier that knows no keys, but can be asked.

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

/// A parcel that is to be fetched, or will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    /// The customer's name for it.
    pub reference: String,
}

/// The carrier. Every booking is another parcel, under whatever name.
pub struct Carrier {
    books: Books,
    web: Web,
}

type Books = Arc<Mutex<Vec<Booking>>>;

impl Carrier {
    /// Opens it: `POST /bookings` books, `GET /bookings/{reference}` finds.
    pub async fn open() -> Result<Self> {
        let books = Books::default();
        let app = Router::new()
            .route("/bookings", post(book))
            .route("/bookings/{reference}", get(find))
            .with_state(Arc::clone(&books));
        let web = Web::serve(app).await?;
        Ok(Self { books, web })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.web.address
    }

    /// How many parcels it will fetch under this name.
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
