//! What the processes of a run do, one role each: the whole of their code, built on what every user has.

mod board;
mod by_hand;
mod note;
mod observer;
mod producer;
mod relay;
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
use super::config::{Field, Kind};

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

/// How many messages the producers of a run have sent.
pub fn sent(dir: &Path) -> Result<u64> {
    Counter::read(dir, producer::SENT)
}

/// How many messages the consumers of a run were given: targets, board, observer.
pub fn given(dir: &Path) -> Result<[u64; 3]> {
    let read = |name| Counter::read(dir, name);
    Ok([read(targets::GIVEN)?, read(board::GIVEN)?, read(observer::GIVEN)?])
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
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.argument())
    }
}
