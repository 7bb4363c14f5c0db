//! Requests that take effect once: a `tower` layer for axum and hyper that reads `Idempotency-Key`.

mod body;
mod fingerprint;
mod journal;
mod key;
mod layer;
mod lease;
mod lent;
mod options;
mod problem;
mod recorded;
mod service;
mod transaction;

pub use body::{Body, BodyError};
pub use layer::{IdempotencyLayer, REPLAYED};
pub use lent::{KeepWrites, RequestTx};
pub use service::IdempotencyService;
