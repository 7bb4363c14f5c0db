//! The code of the processes of a run. It uses only functions that every user of idem can use.

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
mod unprotected;
pub mod wiring;

use std::path::Path;

use anyhow::Result;

use self::note::Counter;
use super::{
    place::Queue,
    post::{Post, Role},
};

/// Runs a role until SIGTERM, or until it has no more to do.
pub async fn run(role: Role, post: &Post) -> Result<()> {
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

/// Returns the number of entries of its plan that the producer has noted as sent.
pub fn noted(dir: &Path) -> Result<u64> {
    Counter::read(dir, producer::PROGRESS)
}

/// Returns the number of messages that the producers of a run have sent.
pub fn sent(dir: &Path) -> Result<u64> {
    Counter::read(dir, producer::SENT)
}

/// Returns the number of deliveries from a queue.
pub fn given(dir: &Path, queue: Queue) -> Result<u64> {
    Counter::read(dir, queue.name())
}
