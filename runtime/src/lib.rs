#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod boxed;
mod connection;
mod consumer;
mod dead_letter_headers;
mod error;
mod filter;
mod handler;
pub mod inbox;
pub mod journal;
mod layer;
pub mod lease;
mod memory;
mod message;
mod panics;
mod policy;
#[cfg(feature = "tls")]
mod pool;
mod process;
mod relay;
mod services;
mod settlement;
mod short_transaction;
mod stored;
mod telemetry;
pub mod transaction;
pub mod transport;

pub use idem_client::relay::OutgoingMessage;
// The crates whose types are in the signatures of this crate.
pub use deadpool_postgres;
pub use idem_client;
pub use tokio_postgres;

pub use consumer::{
    Batches, Closed, Consumer, ConsumerStatus, Delivery, Receipt, Selector, Source, SourceEnded,
    Summary, TransportError, terminated,
};
pub use error::{DecodeError, Error};
pub use filter::{After, Before, Filter};
pub use handler::{
    CheckedHandler, Handled, Handler, HandlerError, HandlerFailed, TerminalError, UnavailableError,
};
pub use layer::{IdemLayer, IdemService, Protected, ServiceHandler, service_handler};
pub use message::{Coordinates, Message};
pub use policy::{
    IdFunction, IdStrategy, Isolation, MissingId, OnDuplicate, Policies, Policy, Retry, Rule,
    Store, Style,
};
#[cfg(feature = "tls")]
pub use pool::PoolConfig;
pub use process::{Idem, IdemBuilder, Processed, Savepoint, Tx};
pub use relay::{
    HandOver, Local, PublishError, Publisher, Relay, RelayDefaults, RelayStatus, RelaySummary,
    Topics, UnavailableTopic,
};
pub use services::Services;
pub use settlement::Settlement;
pub use telemetry::describe_metrics;
