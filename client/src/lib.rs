#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod begin;
mod claim;
mod commit;
mod destination;
mod effect;
mod error;
mod id;
mod outbox;
mod recorded;
mod span;

pub use begin::{ClaimedTransaction, begin_and_claim};
pub use claim::{Claim, ClaimOptions, Outcome, claim, is_claimed, try_claim, try_claim_batch, try_record};
pub use commit::commit;
pub use destination::Destination;
pub use effect::Effect;
pub use error::{Error, ErrorKind};
pub use id::MessageId;
pub use outbox::send;
pub use recorded::{RecordedEffect, effects, replay_effects};
