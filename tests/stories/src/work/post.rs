//! The roles and the arguments of the workers.

use std::{fmt, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use deadpool_postgres::{Manager, Pool};
use idem_client::Destination;
use idem_runtime::{Error, Handled, Idem, Message, Policies, Processed, lease::LeaseContext};
use tokio::time::sleep;
use tokio_postgres::NoTls;

use super::notes;

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

impl Post {
    /// Creates a pool, which opens connections at their first use.
    pub(super) fn pool(&self) -> Result<Pool> {
        let manager = Manager::new(self.database.parse()?, NoTls);
        Ok(Pool::builder(manager).max_size(8).build()?)
    }

    pub(super) fn message(&self, role: Role) -> Result<Message> {
        let destination = Destination::new(role.destination())?;
        Ok(Message::new(role.destination(), self.payload.clone())
            .with_destination(destination)
            .with_message_id(&self.message))
    }

    pub(super) fn outside(&self) -> Result<SocketAddr> {
        self.outside.context("this role needs --outside")
    }

    /// Delivers the message to a handler under a lease, and retries until it is done. `hear` is
    /// called with the result of each delivery.
    pub(super) async fn until_done<F, Fut>(
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
                Ok(other) => bail!("{other:?}"),
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
        let value = self.to_possible_value().ok_or(fmt::Error)?;
        f.write_str(value.get_name())
    }
}
