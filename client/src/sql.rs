//! The statements of this crate, their parts and their results, for callers that send them in their
//! own way: as a simple query together with other statements, or in a pipeline.
//!
//! [`MessageId::parameter`](crate::MessageId::parameter),
//! [`Destination::parameter`](crate::Destination::parameter) and the functions `literal` of both
//! return the arguments.

pub use crate::{
    claim::RECORD_EFFECTS_BATCH,
    escape::{last_value, literal, without_zero_bytes},
    id::IdArray,
    outbox::Send,
    outcome::ClaimOutcome,
};
