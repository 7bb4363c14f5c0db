//! What a worker of the hard stories does with its message: the whole of its code, as any user would write it.

mod bare;
pub mod ears;
pub mod outside;

use std::{fmt, net::SocketAddr};

use anyhow::Result;
use clap::{Args, ValueEnum};
use deadpool_postgres::{Manager, Pool};
use idem_client::{Destination, Message};
use tokio_postgres::NoTls;

use self::{ears::Ears, outside::Outside};

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Charges a card in the business transaction, under a key that is new each time.
    CardBare,
    /// Books a parcel in the business transaction.
    CarrierBare,
    /// Sends a mail in the business transaction.
    MailBare,
}

/// What a worker is told at its start.
#[derive(Args, Clone, Debug)]
pub struct Post {
    /// Where the database is: a connection string
    #[arg(long)]
    pub database: String,
    /// Where the other side is
    #[arg(long)]
    pub outside: SocketAddr,
    /// The id of the message
    #[arg(long)]
    pub message: String,
}

/// Works until the message is done, or whoever started this process is gone.
pub async fn run(role: Role, post: Post) -> Result<()> {
    let _ears = Ears::listen();
    match role {
        Role::CardBare | Role::CarrierBare | Role::MailBare => bare::run(role, &post).await,
    }
}

impl Post {
    /// One connection, made when it is needed.
    fn pool(&self) -> Result<Pool> {
        let manager = Manager::new(self.database.parse()?, NoTls);
        Ok(Pool::builder(manager).max_size(2).build()?)
    }

    fn message(&self, role: Role) -> Result<Message> {
        let destination = Destination::new(role.destination())?;
        Ok(Message::new(role.destination(), "{}")
            .with_destination(destination)
            .with_message_id(&self.message))
    }

    fn outside(&self) -> Outside {
        Outside::new(self.outside)
    }
}

impl Role {
    /// The name on a command line.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::CardBare => "card-bare",
            Self::CarrierBare => "carrier-bare",
            Self::MailBare => "mail-bare",
        }
    }

    /// Who handles the messages.
    #[must_use]
    pub fn destination(self) -> &'static str {
        match self {
            Self::CardBare => "shop.cards",
            Self::CarrierBare => "shop.parcels",
            Self::MailBare => "shop.mails",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.argument())
    }
}
