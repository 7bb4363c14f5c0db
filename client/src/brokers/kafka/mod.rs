//! Kafka: offsets are committed after the database.
//!
//! A Kafka consumer does not acknowledge messages; its group remembers one offset for each
//! partition, and everything below it counts as done. Messages are settled out of order, and some
//! shall come again, so between the two stands a [ledger](ledger): what was delivered and not yet
//! settled, for each partition. Only what lies below all of that is committed. The database has
//! committed by then, so a crash in between costs a duplicate, and the claim finds it.

mod config;
mod dead_letter;
mod driver;
mod errors;
mod incoming;
mod ledger;
mod offsets;
mod producer;
mod publisher;
mod receipt;
mod source;

pub use config::{DeadLetter, KafkaConfig, KafkaSubscription};
pub use publisher::KafkaPublisher;
pub use source::KafkaSource;
