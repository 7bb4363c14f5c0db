//! What the processes of a run do, one role each: the whole of their code, built on what every user
//! has.

mod board;
mod by_hand;
pub mod claims;
mod flawed;
pub mod leases;
pub mod letters;
mod note;
mod observer;
mod producer;
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
use idem_client::{Destination, Error};

use self::note::Counter;
use super::{
    Flaw,
    config::{Field, Kind},
};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Sends the commands, some of them twice.
    Producer,
    /// Handles the commands, with facts as their effects.
    Targets,
    /// Publishes the facts.
    Relay,
    /// Hears the facts and counts the hits.
    Board,
    /// Hears the facts and forgets none. It does not know idem.
    Observer,
    /// Writes a letter for each hit, under a lease.
    Letters,
    /// Claims the same ids from several sessions at the same time.
    Claims,
    /// Leases the same ids from several sessions, for less time than some work takes.
    Leases,
    /// Sends numbered steps of a few keys.
    Steps,
}

/// What a process is told at its start.
#[derive(Args, Clone, Debug)]
pub struct Post {
    /// What the messages travel over
    #[arg(long, value_enum)]
    pub broker: Kind,
    /// Where the broker is
    #[arg(long)]
    pub broker_url: String,
    /// Where the database is: a connection string
    #[arg(long)]
    pub database: String,
    /// Where this process finds what an earlier one has noted
    #[arg(long)]
    pub dir: PathBuf,
    /// How many messages the producer sends in a second
    #[arg(long)]
    pub per_second: u32,
    /// Handle the commands without idem
    #[arg(long)]
    pub unprotected: bool,
    /// A bug to work with
    #[arg(long = "break", value_enum)]
    pub flaw: Option<Flaw>,
    /// What travels
    #[command(flatten)]
    pub field: Field,
}

/// Works until it is told to stop (SIGTERM), has nothing more to do, or whoever started it is gone.
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

/// The relay of the range. Its processes share the partitions.
pub const RELAY: &str = "range";

/// How many it has.
pub const RELAY_PARTITIONS: i32 = 4;

/// Who handles the commands.
pub fn targets() -> Result<Destination, Error> {
    Destination::new("range.targets")
}

/// Who counts the hits.
pub fn board() -> Result<Destination, Error> {
    Destination::new("range.board")
}

/// Who writes the letters.
pub fn letters() -> Result<Destination, Error> {
    Destination::new("range.letters")
}

/// How many entries of its plan the producer has noted as sent.
pub fn noted(dir: &Path) -> Result<usize> {
    note::Note::new(dir, producer::PROGRESS).read()
}

/// How many messages the producers of a run have sent.
pub fn sent(dir: &Path) -> Result<u64> {
    Counter::read(dir, producer::SENT)
}

/// How many messages the consumers of a run were given: targets, board, observer.
pub fn given(dir: &Path) -> Result<[u64; 3]> {
    let read = |name| Counter::read(dir, name);
    Ok([
        read(targets::GIVEN)?,
        read(board::GIVEN)?,
        read(observer::GIVEN)?,
    ])
}

impl Role {
    /// The name on a command line.
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
