//! Processes one message once: claim, handler, recording of effects, commit.
//!
//! The header of `pipeline.rs` lists the steps in their order. The other files have the steps.

mod batch;
mod builder;
mod checked;
mod claim;
mod counting;
mod doubt;
mod duplicate;
mod environment;
mod in_transaction;
mod leases;
mod pipeline;
mod prepare;
mod processed;
pub(crate) mod session;
mod settings;
mod task;
mod tx;
mod under_lease;
mod work;

pub use builder::IdemBuilder;
pub(crate) use claim::fingerprint;
pub use pipeline::Idem;
pub use processed::Processed;
pub use tx::Tx;
pub(crate) use {counting::check_counted, environment::caused_by_environment};
