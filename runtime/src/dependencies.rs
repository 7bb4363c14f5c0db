//! The crates whose types are in the signatures of this crate, in the versions that it uses.
//!
//! ```
//! use idem_runtime::{Message, dependencies::bytes::Bytes};
//!
//! let payload: Bytes = Message::new("orders", "{}").payload().clone();
//! ```

pub use bytes;
pub use deadpool_postgres;
pub use futures_util;
pub use idem_client;
#[cfg(feature = "tls")]
pub use rustls;
pub use serde;
pub use serde_json;
pub use time;
pub use tokio;
pub use tokio_postgres;
pub use tokio_util;
pub use uuid;
