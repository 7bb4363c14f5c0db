//! The rules of idem that need no server: identities, effects, external calls and their limits.
//!
//! The extension links this crate. The tests of these rules run without PostgreSQL.

// A panic would end the statement of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod call;
mod effect;
mod error;
mod failure;
pub mod filter;
mod identity;
mod json;
pub mod limits;
pub mod memory;

pub use call::{Attempts, CallEvent, CallState};
pub use effect::{EffectSpec, PayloadSpec, parse_effects, parse_effects_of_each};
pub use effect::{JSON, OCTETS, traceparent};
pub use error::{Invalid, Rejected, check_len};
pub use failure::{
    Failure, is_final, is_last_failure, last_failure, note_failure, truncated_error,
};
pub use identity::{
    Key, MessageId, Salt, call_key, check_destination, effect_message_id, partition_hash,
    request_digest,
};
