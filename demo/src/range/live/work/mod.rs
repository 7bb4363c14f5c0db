//! The roles of the processes of a run. Their code uses only functions that every user of idem can
//! use.

mod board;
mod by_hand;
pub mod claims;
mod flawed;
pub mod leases;
pub mod letters;
mod note;
mod observer;
mod producer;
pub mod program;
mod relay;
mod sessions;
pub mod steps;
mod targets;
mod tie;
mod unprotected;
mod wiring;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use idem_client::Destination;
use idem_runtime::Error;

use self::note::Counter;
use super::{
    Flaw,
    config::{Field, Kind},
};

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Sends the commands, some of them twice.
    Producer,
    /// Handles the commands and records facts as their effects.
    Targets,
    /// Publishes the effects.
    Relay,
    /// Receives the facts and counts the hits.
    Board,
    /// Receives the facts and stores all of them, without idem.
    Observer,
    /// Writes a letter for each hit, under a lease.
    Letters,
    /// Claims the same ids from several sessions concurrently.
    Claims,
    /// Leases the same ids from several sessions, and holds some for longer than the lease.
    Leases,
    /// Sends numbered steps of a few keys.
    Steps,
}

/// The arguments of a process.
#[derive(Args, Clone, Debug)]
pub struct Post {
    /// The broker
    #[arg(long, value_enum)]
    pub broker: Kind,
    /// The URL of the broker
    #[arg(long)]
    pub broker_url: String,
    /// The connection string of the database
    #[arg(long)]
    pub database: String,
    /// The directory with the notes of earlier processes of this role
    #[arg(long)]
    pub dir: PathBuf,
    /// The number of messages that the producer sends per second
    #[arg(long)]
    pub per_second: u32,
    /// Handle the commands without idem
    #[arg(long)]
    pub unprotected: bool,
    /// The planted bug
    #[arg(long = "break", value_enum)]
    pub flaw: Option<Flaw>,
    /// The traffic
    #[command(flatten)]
    pub field: Field,
}

/// Runs a role until SIGTERM, or until it has no more to do. The process also ends when its
/// standard input is closed.
pub async fn run(role: Role, post: &Post) -> Result<()> {
    tie::end_with_owner();
    match role {
        Role::Producer => producer::run(post).await,
        Role::Targets if post.unprotected => unprotected::run(post).await,
        Role::Targets => targets::run(post).await,
        Role::Relay => relay::run(post).await,
        Role::Board => board::run(post).await,
        Role::Observer => observer::run(post).await,
        Role::Letters => letters::run(post).await,
        Role::Claims => claims::run(post).await,
        Role::Leases => leases::run(post).await,
        Role::Steps => steps::run(post).await,
    }
}

/// The name of the relay. Its processes share the partitions.
pub const RELAY: &str = "range";

/// The number of partitions of the relay.
pub const RELAY_PARTITIONS: i32 = 4;

/// Returns the destination that handles the commands.
pub fn targets() -> Result<Destination, Error> {
    Ok(Destination::new("range.targets")?)
}

/// Returns the destination that counts the hits.
pub fn board() -> Result<Destination, Error> {
    Ok(Destination::new("range.board")?)
}

/// Returns the destination that writes the letters.
pub fn letters() -> Result<Destination, Error> {
    Ok(Destination::new("range.letters")?)
}

/// Returns the number of entries of its plan that the producer has noted as sent.
pub fn noted(dir: &Path) -> Result<usize> {
    note::Note::new(dir, producer::PROGRESS).read()
}

/// Returns the number of messages that the producers of a run have sent.
pub fn sent(dir: &Path) -> Result<u64> {
    Counter::read(dir, producer::SENT)
}

/// Returns the number of deliveries to the targets, the board and the observer of a run.
pub fn given(dir: &Path) -> Result<[u64; 3]> {
    let read = |name| Counter::read(dir, name);
    Ok([
        read(targets::GIVEN)?,
        read(board::GIVEN)?,
        read(observer::GIVEN)?,
    ])
}

impl Role {
    /// Returns the name on the command line.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Targets => "targets",
            Self::Relay => "relay",
            Self::Board => "board",
            Self::Observer => "observer",
            Self::Letters => "letters",
            Self::Claims => "claims",
            Self::Leases => "leases",
            Self::Steps => "steps",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.argument())
    }
}
