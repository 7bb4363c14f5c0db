//! The faults. A fault is injected, held for some seconds, and healed. The campaign injects the
//! next fault when messages are handled again.

pub mod clock;
pub mod crash;
pub mod disk;
pub mod environment;
pub mod network;
pub mod poison;
pub mod promote;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::BoxFuture;
use rand::{RngExt, rngs::StdRng};

use super::site::Site;

/// The kinds of faults. During a fault, processes are also killed and rings rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The broker is killed and restarted.
    BrokerCrash,
    /// The primary is killed and restarted.
    PrimaryCrash,
    /// The standby is killed and restarted. Commits wait meanwhile.
    StandbyCrash,
    /// The primary is killed, the standby is promoted, and the old primary is rebuilt as the next
    /// standby.
    Promotion,
    /// The wall clock of the servers jumps and is set back.
    ClockJump,
    /// The disk of the primary is full.
    FullDisk,
    /// All connections are reset.
    NetworkReset,
    /// The network passes no data.
    NetworkStall,
    /// Connections are closed at the server, and the client receives nothing.
    NetworkHalfOpen,
    /// A privilege of the consumers on a table is revoked.
    RightsRevoked,
    /// A table is missing.
    TableAway,
    /// The bindings or subjects of the effects are missing.
    TopicsAway,
    /// Statements exceed `statement_timeout`.
    StatementTimeout,
    /// All connections of the primary are in use.
    NoConnections,
    /// Poison messages are sent. Some of them are repaired and requeued.
    Poison,
}

/// One kind of fault.
pub trait Fault: Send {
    /// Returns the kind of the fault.
    fn kind(&self) -> Kind;

    /// Injects the fault, holds it, and heals it completely. Returns whether the fault had a
    /// visible consequence. A fault without one is not counted.
    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>>;
}

/// Returns all faults, one of each kind.
#[must_use]
pub fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(crash::BrokerCrash),
        Box::new(crash::PrimaryCrash),
        Box::new(crash::StandbyCrash),
        Box::new(promote::Promotion),
        Box::new(clock::ClockJump),
        Box::new(disk::FullDisk),
        Box::new(network::Reset),
        Box::new(network::Stall),
        Box::new(network::HalfOpen),
        Box::new(environment::RightsRevoked),
        Box::new(environment::TableAway),
        Box::new(environment::TopicsAway),
        Box::new(environment::StatementTimeout),
        Box::new(environment::NoConnections),
        Box::new(poison::PoisonBurst),
    ]
}

/// The longest time that a fault is held until the log of the primary shows its consequence.
const PATIENCE: Duration = Duration::from_secs(20);

/// The interval between two reads of the log of the primary.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// Holds a fault for a random time in this range of seconds, and then until the log of the primary
/// has more than `before` lines with this text, for at most 20 seconds more. Returns whether the
/// log has these lines.
async fn hold_until_logged(
    site: &Site,
    dice: &mut StdRng,
    seconds: std::ops::Range<f64>,
    text: &str,
    before: usize,
) -> Result<bool> {
    hold(dice, seconds).await;
    let began = Instant::now();
    while site.count_in_log(text).await? <= before {
        if began.elapsed() > PATIENCE {
            return Ok(false);
        }
        // The pause is fixed. With random pauses, the number of random values that this loop takes,
        // and so all later random choices, would depend on the timing.
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(true)
}

/// Holds a fault for a random time in this range of seconds.
async fn hold(dice: &mut StdRng, seconds: std::ops::Range<f64>) {
    tokio::time::sleep(Duration::from_secs_f64(dice.random_range(seconds))).await;
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BrokerCrash => "broker killed and restarted",
            Self::PrimaryCrash => "primary killed and restarted",
            Self::StandbyCrash => "standby killed and restarted",
            Self::Promotion => "standby promoted, old primary rebuilt",
            Self::ClockJump => "wall clock jumped and set back",
            Self::FullDisk => "disk of the primary full",
            Self::NetworkReset => "connections reset",
            Self::NetworkStall => "network stalled",
            Self::NetworkHalfOpen => "connections half open",
            Self::RightsRevoked => "privilege on a table revoked",
            Self::TableAway => "table missing",
            Self::TopicsAway => "bindings or subjects missing",
            Self::StatementTimeout => "statements timed out",
            Self::NoConnections => "all connections in use",
            Self::Poison => "burst of poison messages",
        })
    }
}
