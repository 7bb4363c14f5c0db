//! Kafka. An offset is committed after the database has committed.
//!
//! A Kafka consumer does not acknowledge single messages. Its group stores one offset for each
//! partition, and all messages below this offset count as processed. But messages are settled out
//! of order, and some must be redelivered. So a ledger contains the offsets of each
//! partition that were delivered and are not settled. The source commits only an offset below which
//! all offsets are settled. The database has committed these messages by then, so a crash before
//! the commit of the offset causes a duplicate, which the claim finds.

// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod config;
mod dead_letter;
mod driver;
mod errors;
mod incoming;
mod ledger;
mod producer;
mod publisher;
mod receipt;
mod source;

pub use config::{DeadLetter, KafkaConfig, KafkaSubscription};
pub use publisher::KafkaPublisher;
pub use source::KafkaSource;

// The crate whose types are in the signatures of this crate.
pub use idem_runtime;
