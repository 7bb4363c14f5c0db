//! The faults. Each is injected, held for a while, and healed; the campaign goes on to the next one
//! when messages are handled again.

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

/// Every kind of fault. Kills of processes and rotations go on beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The broker is killed and restarted.
    BrokerCrash,
    /// The primary is killed and restarted.
    PrimaryCrash,
    /// The standby is killed and restarted: commits wait.
    StandbyCrash,
    /// The primary is killed, the standby promoted, the old primary rebuilt as the next standby.
    Promotion,
    /// The wall clock of the servers jumps, and back.
    ClockJump,
    /// The disk of the primary is full.
    FullDisk,
    /// All connections are reset.
    NetworkReset,
    /// The network stands still.
    NetworkStall,
    /// Connections are closed at the server, and silent at the client.
    NetworkHalfOpen,
    /// Consumers lose a right on a table.
    RightsRevoked,
    /// A table is not there.
    TableAway,
    /// The places that effects are published to are not there.
    TopicsAway,
    /// Statements take longer than they may.
    StatementTimeout,
    /// No connection is left.
    NoConnections,
    /// Messages that cannot be handled, some of which are repaired and requeued.
    Poison,
}

/// One kind of fault.
pub trait Fault: Send {
    /// Which kind.
    fn kind(&self) -> Kind;

    /// Injects it, holds it, and heals it. When it returns, nothing of it is left. Returns whether
    /// an effect of it was seen: without one it does not count.
    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>>;
}

/// All faults, one of each kind.
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

/// How long a fault is held at most for an effect in the log of the primary.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long between two looks at the log of the servers.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// Holds a fault for some seconds, and until the primary has logged this text once more than
/// `before`. Returns whether it has.
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
        // Without the dice: the number of looks would change what comes later.
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(true)
}

/// Holds a fault for some seconds.
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
            Self::ClockJump => "wall clock jumped, and back",
            Self::FullDisk => "disk of the primary full",
            Self::NetworkReset => "connections reset",
            Self::NetworkStall => "network stalled",
            Self::NetworkHalfOpen => "connections half open",
            Self::RightsRevoked => "right on a table revoked",
            Self::TableAway => "table away",
            Self::TopicsAway => "exchanges or subjects away",
            Self::StatementTimeout => "statements timed out",
            Self::NoConnections => "connections used up",
            Self::Poison => "burst of poison",
        })
    }
}
