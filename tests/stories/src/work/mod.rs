//! The code of the workers of the hard stories. It uses only functions that every user of idem can
//! use.

mod bare;
mod consumer;
mod control;
mod holder;
mod journal;
pub mod notes;
mod outside;
mod post;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use self::control::Control;
pub use self::{
    consumer::{HANDLED, Wish},
    journal::UNKNOWN,
    post::{LEASE, Post, Role},
};

/// Runs a role until its message is done. The process also ends when its standard input is closed.
pub async fn run(role: Role, post: Post) -> Result<()> {
    let control = Control::listen();
    match role {
        Role::Card | Role::Carrier | Role::Mail | Role::MailOnce => journal::run(role, &post).await,
        Role::CardBare | Role::CarrierBare | Role::MailBare => bare::run(role, &post).await,
        Role::Holder | Role::Fetcher => holder::run(role, &post, control).await,
        Role::Leased => consumer::leased(&post, control).await,
        Role::Durable => consumer::durable(&post, control).await,
        Role::Clock => {
            println!(
                "{}",
                SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs()
            );
            Ok(())
        }
    }
}
