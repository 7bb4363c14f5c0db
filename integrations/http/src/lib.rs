//! A `tower` layer for axum and hyper that reads `Idempotency-Key` and makes each request take
//! effect once.
//!
//! The handler runs for the first request with a key, and the response is recorded. A repeated
//! request with the same key gets the recorded response with the header `Idempotency-Replayed:
//! true`. While the handler runs, a repeated request gets status 409 with `Retry-After`. A request
//! with the same key but different content gets status 422. Statuses after which another attempt
//! may succeed (5xx, 401, 403, 407, 408, 409, 425 and 429) are not recorded.
//!
//! [In a transaction](IdempotencyLayer::transaction) the writes of the handler, the claim of the
//! key and the response are committed together:
//!
//! ```
//! use axum::{Extension, Router, http::StatusCode, routing::post};
//! use idem_client::Destination;
//! use idem_http::{IdempotencyLayer, RequestTx, Scope};
//!
//! async fn place(
//!     Extension(tx): Extension<RequestTx>,
//!     item: String,
//! ) -> Result<StatusCode, StatusCode> {
//!     let tx = tx.take().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     match tx.execute("INSERT INTO orders (item) VALUES ($1)", &[&item]).await {
//!         Ok(_) => Ok(StatusCode::CREATED),
//!         Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
//!     }
//! }
//!
//! # fn service(pool: deadpool_postgres::Pool) -> Result<Router, idem_runtime::Error> {
//! // A real service takes the account from the authenticated user.
//! let account =
//!     Scope::by(|parts| Some(parts.headers.get("x-account")?.to_str().ok()?.to_owned()));
//! let once = IdempotencyLayer::transaction(pool, Destination::new("shop.place-order")?, account);
//! let service = Router::new().route("/orders", post(place)).layer(once);
//! # Ok(service) }
//! ```
//!
//! [With a lease](IdempotencyLayer::lease) the handler can make external calls. Its response is
//! recorded when the handler has finished.
//!
//! With the default feature `axum` the extractors `InTransaction` and `UnderLease` give a handler
//! its transaction or its lease. A request without one gets status 500.

// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod body;
#[cfg(test)]
mod cases;
mod extensions;
#[cfg(feature = "axum")]
mod extractors;
mod fingerprint;
mod journal;
mod key;
mod layer;
mod lease;
mod problem;
mod recorded;
mod request_identity;
mod running;
mod scope;
mod service;
mod statuses;
mod transaction;

pub use body::Body;
pub use extensions::{KeepWrites, RequestTx};
#[cfg(feature = "axum")]
pub use extractors::{InTransaction, NotProtected, UnderLease};
pub use layer::IdempotencyLayer;
pub use recorded::REPLAYED;
pub use running::RunningRequests;
pub use scope::Scope;
pub use service::IdempotencyService;

// The crates whose types are in the signatures of this crate.
pub use bytes;
pub use deadpool_postgres;
pub use http;
pub use http_body;
pub use http_body_util;
pub use idem_client;
pub use idem_runtime;
pub use tower;
