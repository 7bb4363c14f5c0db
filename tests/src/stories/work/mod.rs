//! What a worker of the hard stories does with its message: the whole of its code, as any user
//! would write it.

mod bare;
mod consumer;
mod ears;
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
use idem_client::{Destination, Error, Handled, Idem, Message, Policies, Processed, lease::Work};
use tokio::time::sleep;
use tokio_postgres::NoTls;

use self::ears::Ears;
pub use self::{
    consumer::{HANDLED, Wish},
    journal::UNKNOWN,
};

/// How long a worker has a message without a sign of life. The client renews a lease after a third
/// of this time. A renewal is no step of a story, so an undisturbed worker must end before.
pub const LEASE: Duration = Duration::from_secs(3);

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Charges a card.
    Card,
    /// Charges a card in the business transaction, under a key that is new each time.
    CardBare,
    /// Books a parcel.
    Carrier,
    /// Books a parcel in the business transaction.
    CarrierBare,
    /// Sends a mail, and sends it again when it is not known whether it was sent.
    Mail,
    /// Sends a mail, and gives up when it is not known whether it was sent.
    MailOnce,
    /// Sends a mail in the business transaction.
    MailBare,
    /// Leases a message by hand and says what becomes of that.
    Holder,
    /// Fetches a message from the inbox by hand and says what becomes of that.
    Fetcher,
    /// Handles one message under a lease, as its payload says.
    Leased,
    /// Handles the messages of the inbox, as their payloads say.
    Durable,
    /// Says how many seconds have passed since 1970, as it believes.
    Clock,
}

/// What a worker is told at its start.
#[derive(Args, Clone, Debug)]
pub struct Post {
    /// Where the database is: a connection string
    #[arg(long)]
    pub database: String,
    /// Where the other side is
    #[arg(long)]
    pub outside: Option<SocketAddr>,
    /// The id of the message
    #[arg(long, default_value = "")]
    pub message: String,
    /// What the message says
    #[arg(long, default_value = "{}")]
    pub payload: String,
    /// How many messages of the inbox are handled at a time
    #[arg(long, default_value_t = 2)]
    pub concurrency: usize,
    /// How many messages of the inbox are fetched at a time
    #[arg(long, default_value_t = 20)]
    pub batch: u32,
}

/// Works until the message is done, or whoever started this process is gone.
pub async fn run(role: Role, post: Post) -> Result<()> {
    let ears = Ears::listen();
    match role {
        Role::Card | Role::Carrier | Role::Mail | Role::MailOnce => journal::run(role, &post).await,
        Role::CardBare | Role::CarrierBare | Role::MailBare => bare::run(role, &post).await,
        Role::Holder | Role::Fetcher => holder::run(role, &post, ears).await,
        Role::Leased => consumer::leased(&post, ears).await,
        Role::Durable => consumer::durable(&post, ears).await,
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
    /// Connections are made when they are needed.
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
        self.outside.context("this role speaks to the outside")
    }

    /// Delivers the message to a handler under a lease, again and again, until it is done. `hear`
    /// is told what became of each delivery.
    async fn until_done<F, Fut>(
        &self,
        role: Role,
        pool: &Pool,
        handler: F,
        hear: impl Fn(&str),
    ) -> Result<()>
    where
        F: Fn(Work, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let policies =
            Policies::default().destination(role.destination(), |rule| rule.lease(LEASE));
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
    /// The name on a command line.
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

    /// Who handles the messages.
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
