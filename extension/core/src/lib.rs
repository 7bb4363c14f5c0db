//! What idem knows without a server: identities, effects and their limits.
//!
//! The extension links it; the tests of its rules run without PostgreSQL.

mod effect;
mod error;
mod identity;
pub mod limits;

pub use effect::{EffectSpec, PayloadSpec, parse_effects};
pub use effect::{JSON, OCTETS, traceparent};
pub use error::{Invalid, check_len};
pub use identity::{Key, MessageId, check_destination, effect_message_id, partition_hash};
