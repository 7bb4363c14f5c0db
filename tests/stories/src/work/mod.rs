//! The code of the workers of the hard stories. It uses only functions that every user of idem can
//! use.

mod bare;
mod consumer;
mod control;
mod holder;
mod journal;
pub mod notes;
mod outside;

use std::{
    fmt,
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use deadpool_postgres::{Manager, Pool};
use idem_client::Destination;
use idem_runtime::{Error, Handled, Idem, Message, Policies, Processed, lease::LeaseContext};
use tokio::time::sleep;
use tokio_postgres::NoTls;

use self::control::Control;
pub use self::{
    consumer::{HANDLED, Wish},
    journal::UNKNOWN,
};

/// The lease of a message. The client renews it after a third of this time. A renewal is not a
/// request of a story, so a worker that is not killed must finish before its first renewal.
pub const LEASE: Duration = Duration::from_secs(3);

/// The role of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Charges a card.
    Card,
    /// Charges a card in the business transaction, with a new key each time.
    CardBare,
    /// Books a parcel.
    Carrier,
    /// Books a parcel in the business transaction.
    CarrierBare,
    /// Sends a mail, and sends it again when the result of an earlier attempt is unknown.
    Mail,
    /// Sends a mail, and fails when the result of an earlier attempt is unknown.
    MailOnce,
    /// Sends a mail in the business transaction.
    MailBare,
    /// Leases a message of a broker with SQL, and prints the result of each statement.
    Holder,
    /// Leases a received message with SQL, and prints the result of each statement.
    Fetcher,
    /// Handles one message under a lease, as its payload requests.
    Leased,
    /// Handles received messages, as their payloads request.
    Durable,
    /// Prints the wall clock of the process in seconds since 1970.
    Clock,
}

/// The arguments of a worker.
#[derive(Args, Clone, Debug)]
pub struct Post {
    /// The connection string of the database
    #[arg(long)]
    pub database: String,
    /// The address of the external service
    #[arg(long)]
    pub outside: Option<SocketAddr>,
    /// The id of the message
    #[arg(long, default_value = "")]
    pub message: String,
    /// The payload of the message
    #[arg(long, default_value = "{}")]
    pub payload: String,
    /// The number of received messages that are handled concurrently
    #[arg(long, default_value_t = 2)]
    pub concurrency: usize,
    /// The number of received messages that are fetched at a time
    #[arg(long, default_value_t = 20)]
    pub batch: u32,
}

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

impl Post {
    /// Creates a pool, which opens connections at their first use.
    fn pool(&self) -> Result<Pool> {
        let manager = Manager::new(self.database.parse()?, NoTls);
        Ok(Pool::builder(manager).max_size(8).build()?)
    }

    fn message(&self, role: Role) -> Result<Message> {
        let destination = Destination::new(role.destination())?;
        Ok(Message::new(role.destination(), self.payload.clone())
            .with_destination(destination)
            .with_message_id(&self.message))
    }

    fn outside(&self) -> Result<SocketAddr> {
        self.outside.context("this role needs --outside")
    }

    /// Delivers the message to a handler under a lease, and retries until it is done. `hear` is
    /// called with the result of each delivery.
    async fn until_done<F, Fut>(
        &self,
        role: Role,
        pool: &Pool,
        handler: F,
        hear: impl Fn(&str),
    ) -> Result<()>
    where
        F: Fn(LeaseContext, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let policies =
            Policies::default().destination(role.destination(), |policy| policy.lease = LEASE);
        let idem = Idem::builder().policies(policies).build()?;
        let message = self.message(role)?;
        loop {
            let (what, pause) = match idem.process_leased(pool, &message, &handler).await {
                Ok(Processed::New { .. }) => ("handled", None),
                Ok(Processed::Duplicate { .. }) => ("duplicate", None),
                Ok(Processed::Buried { .. }) => ("buried", None),
                Ok(Processed::Dead) => ("dead", None),
                Ok(Processed::Leased { retry_after }) => ("leased", Some(retry_after)),
                Ok(other) => anyhow::bail!("{other:?}"),
                Err(Error::Attempt { retry_after, .. }) => ("failed", Some(retry_after)),
                Err(Error::LeaseLost) => {
                    notes::take(pool, &self.message, "lost").await?;
                    ("lost", Some(Duration::ZERO))
                }
                Err(error) => return Err(error.into()),
            };
            hear(what);
            match pause {
                Some(pause) => sleep(pause).await,
                None => return Ok(()),
            }
        }
    }
}

impl Role {
    /// Returns the name on the command line.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::CardBare => "card-bare",
            Self::Carrier => "carrier",
            Self::CarrierBare => "carrier-bare",
            Self::Mail => "mail",
            Self::MailOnce => "mail-once",
            Self::MailBare => "mail-bare",
            Self::Holder => "holder",
            Self::Fetcher => "fetcher",
            Self::Leased => "leased",
            Self::Durable => "durable",
            Self::Clock => "clock",
        }
    }

    /// Returns the destination of the messages.
    #[must_use]
    pub fn destination(self) -> &'static str {
        match self {
            Self::Card | Self::CardBare => "shop.cards",
            Self::Carrier | Self::CarrierBare => "shop.parcels",
            Self::Mail | Self::MailOnce | Self::MailBare => "shop.mails",
            Self::Holder | Self::Leased | Self::Clock => "shop.leased",
            Self::Fetcher | Self::Durable => "shop.inbox",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.argument())
    }
}
