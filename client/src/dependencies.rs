//! The crates whose types are in the signatures of this crate, in the versions that it uses.
//!
//! ```
//! use idem_client::{Effect, dependencies::bytes::Bytes};
//!
//! let effect = Effect::bytes("files", Bytes::from_static(&[1, 2]), "image/png");
//! # drop(effect);
//! ```

pub use bytes;
#[cfg(feature = "deadpool")]
pub use deadpool_postgres;
pub use serde;
pub use serde_json;
pub use time;
pub use tokio_postgres;
pub use tracing;
pub use uuid;
