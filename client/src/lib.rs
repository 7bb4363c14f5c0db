#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod begin;
mod claim;
mod commit;
pub mod deadletters;
mod destination;
mod effect;
mod error;
mod escape;
mod executor;
mod id;
pub mod inbox;
pub mod journal;
pub mod lease;
mod outbox;
mod outcome;
pub mod pipeline;
pub mod preflight;
mod recorded;
pub mod redacted;
pub mod relay;
mod row;
pub mod span;
pub mod sql;

pub use begin::{ClaimedTransaction, begin_and_claim};
pub use claim::{
    ClaimOptions, Claimed, Claims, claim, is_claimed, try_claim, try_claim_batch, try_record,
};
pub use commit::commit;
pub use destination::Destination;
pub use effect::Effect;
pub use error::{DriverError, Error, ErrorKind};
pub use executor::{Executor, OpenTransaction};
pub use id::MessageId;
pub use outbox::send;
pub use outcome::Claim;
pub use recorded::{RecordedEffect, effects};
pub use row::{Column, Row};

pub use tokio_postgres;
