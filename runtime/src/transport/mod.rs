//! Parts of the runtime for a crate that connects consumers and relays to a broker.

use std::future::pending;

use tokio::time::{Instant, sleep_until};

mod checks;
pub mod headers;
#[cfg(feature = "tls")]
pub mod percent;
#[cfg(feature = "tls")]
pub mod tls;
pub mod withheld;

pub use self::checks::{check_login, check_setting, check_topic};
pub use crate::{consumer::TransportError, message::Coordinates};

/// Sleeps until this moment, or without end when it is `None`.
pub async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
