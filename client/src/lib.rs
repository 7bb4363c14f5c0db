#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// SQL functions, on a transaction or connection of the caller.
mod admin;
mod begin;
mod boxed;
mod claim;
mod commit;
pub mod deadletters;
mod destination;
mod effect;
mod error;
mod id;
pub mod journal;
pub mod lease;
mod outbox;
mod outcome;
mod pipeline;
mod recorded;
mod redacted;
mod span;
mod sql;

// Consumers and relays, built on the SQL functions.
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod brokers;
#[cfg(feature = "runtime")]
mod connection;
#[cfg(feature = "runtime")]
mod consumer;
#[cfg(feature = "runtime")]
mod dead_letter_headers;
#[cfg(feature = "runtime")]
pub mod durable;
#[cfg(feature = "runtime")]
mod filter;
#[cfg(feature = "runtime")]
mod handler;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "runtime")]
mod layer;
#[cfg(feature = "runtime")]
mod memory;
#[cfg(feature = "runtime")]
mod message;
#[cfg(feature = "runtime")]
mod panics;
#[cfg(any(feature = "nats", feature = "tls"))]
mod percent;
#[cfg(feature = "runtime")]
mod policy;
#[cfg(feature = "tls")]
mod pool;
#[cfg(feature = "runtime")]
mod preflight;
#[cfg(feature = "runtime")]
mod process;
#[cfg(feature = "runtime")]
mod relay;
#[cfg(feature = "runtime")]
mod services;
#[cfg(feature = "runtime")]
mod settlement;
#[cfg(feature = "runtime")]
mod short_transaction;
#[cfg(feature = "runtime")]
mod stored;
#[cfg(feature = "runtime")]
mod telemetry;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "tls"))]
mod tls;

pub use admin::{
    Check, Ring, RoleKind, RotationBlocker, Status, configure, forget, grant, health, maintain,
    remove_destination, revoke, rotation_blockers, set_retention,
};
pub use begin::{ClaimedTransaction, begin_and_claim};
pub use claim::{ClaimOptions, Claimed, claim, is_claimed, try_claim, try_claim_batch, try_record};
pub use commit::commit;
pub use destination::Destination;
pub use effect::Effect;
pub use error::{DecodeError, Error, ErrorKind};
pub use id::MessageId;
pub use outbox::send;
pub use outcome::{Claim, Claims};
pub use recorded::{RecordedEffect, effects, replay_effects};
pub use redacted::without_value;

#[cfg(feature = "kafka")]
pub use brokers::{DeadLetter, KafkaConfig, KafkaPublisher, KafkaSource, KafkaSubscription};
#[cfg(feature = "nats")]
pub use brokers::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
#[cfg(feature = "rabbitmq")]
pub use brokers::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription};
#[cfg(feature = "runtime")]
pub use consumer::{
    Batches, Closed, Consumer, ConsumerStatus, Delivery, Receipt, Selector, Source, SourceEnded,
    Summary, TransportError, terminated,
};
#[cfg(feature = "runtime")]
pub use filter::{After, Before, Filter};
#[cfg(feature = "runtime")]
pub use handler::{
    CheckedHandler, Handled, Handler, HandlerError, HandlerFailed, TerminalError, UnavailableError,
};
#[cfg(feature = "runtime")]
pub use layer::{IdemLayer, IdemService, Protected, ServiceHandler, service_handler};
#[cfg(feature = "runtime")]
pub use message::{Coordinates, Message};
#[cfg(feature = "runtime")]
pub use policy::{
    IdFunction, IdStrategy, Isolation, MissingId, OnDuplicate, Policies, Policy, Retry, Rule,
    Store, Style,
};
#[cfg(feature = "tls")]
pub use pool::PoolConfig;
#[cfg(feature = "runtime")]
pub use preflight::{NotReady, consumer_preflight, relay_preflight};
#[cfg(feature = "runtime")]
pub use process::{Idem, IdemBuilder, Processed, Savepoint, Tx};
#[cfg(feature = "runtime")]
pub use relay::{
    Batch, HandOver, Local, OutgoingMessage, PublishError, Publisher, Relay, RelayDefaults,
    RelayStatus, RelaySummary, Topics, UnavailableTopic, create_relay, drop_relay, hand_over,
    relay_ack, relay_discard, relay_discard_all, relay_extend, relay_next, relay_park,
    relay_partitions, relay_unpark, relay_unpark_all, relay_wait, repair_relays,
};
#[cfg(feature = "runtime")]
pub use services::Services;
#[cfg(feature = "runtime")]
pub use settlement::Settlement;
#[cfg(feature = "runtime")]
pub use telemetry::describe_metrics;
