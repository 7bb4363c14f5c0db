//! Parts of the runtime for an integration that has transactions of its own, such as a layer for
//! HTTP requests.
//!
//! This module is for the crates of idem. It can change in any version.

pub use idem_client::sql::ClaimOutcome;

pub use crate::{
    connection::Patience,
    policy::{LONGEST_LEASE, SHORTEST_LEASE},
    process::session::Session,
    short_transaction::{ShortTransaction, again, in_retried_transaction, in_short_transaction},
};
