//! The servers of a campaign: the primary and its standby, the broker, and the proxies in front of
//! the primary and the broker.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::config::CampaignConfig;
use super::pair::Pair;
use super::schema;
use idem_demo::range::live::{
    Kind,
    broker::Broker,
    place::{self, Queue},
    poison::Poison,
    servers::Shared,
};
use idem_testkit::{
    clock::Clock,
    proxy::{Target, network::Network},
};

/// The longest time for which the campaign retries to acquire a lock.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interval between two checks of a condition.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A poison message that the broker has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPoison {
    /// The kind of the message.
    pub poison: Poison,
    /// The id, which is also in the payload.
    pub id: Uuid,
    /// Whether the message was repaired and requeued.
    pub repaired: bool,
}

/// All servers of a campaign, which are stopped when this value is dropped.
pub struct Site {
    pair: Shared<Pair>,
    broker: Shared<Broker>,
    /// The wall clock of the servers.
    pub clock: Clock,
    /// The proxy between the processes and the primary.
    pub database_proxy: Network,
    /// The proxy between the processes and the broker.
    pub broker_proxy: Network,
    /// The kind of the broker.
    pub kind: Kind,
    /// The URL of the broker, without the proxy.
    pub broker_url: String,
    /// The URL of the broker for the processes, through the proxy.
    pub proxied_broker_url: String,
    /// The connection string of the database for the processes, through the proxy.
    pub proxied_database: String,
    database: Mutex<String>,
    poison: Mutex<Vec<SentPoison>>,
}

impl Site {
    /// Starts all servers, with empty tables and empty queues. The servers must be able to read
    /// `dir`.
    pub async fn start(config: &CampaignConfig, dir: &Path, positions: &[i32]) -> Result<Self> {
        let kind = config.broker;
        let clock = Clock::wrong_by(0)?;
        let broker = Broker::start(kind)?;
        let pair = Pair::start(dir, &clock)?;
        let (database_proxy, broker_proxy) = (
            Network::start(Target::Unix(pair.socket())).await?,
            Network::start(Target::Tcp((Ipv4Addr::LOCALHOST, broker.port).into())).await?,
        );
        let broker_url = broker.url.clone();
        let site = Self {
            proxied_broker_url: broker_url
                .replace(&broker.port.to_string(), &broker_proxy.port().to_string()),
            proxied_database: format!(
                "host=127.0.0.1 port={} user=postgres dbname=postgres {SEARCH_PATH}",
                database_proxy.port()
            ),
            database: Mutex::new(pair.connection_string()),
            pair: Shared::new(pair),
            broker: Shared::new(broker),
            clock,
            database_proxy,
            broker_proxy,
            kind,
            broker_url,
            poison: Mutex::default(),
        };
        let client = site.connect().await?;
        schema::set_up(&client, config.field().players, positions, config.flaw).await?;
        place::make(kind, &site.broker_url, &Queue::CAMPAIGN)
            .await
            .context("cannot create the queues of the campaign")?;
        Ok(site)
    }

    /// Opens a connection to the primary as superuser, without the proxy.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_as("postgres", "campaign").await
    }

    /// Opens a connection to the primary with this role and application name, without the proxy.
    pub async fn connect_as(&self, role: &str, application: &str) -> Result<Client> {
        let url = self
            .database
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let url = format!("{url} application_name={application} {SEARCH_PATH}");
        let mut config: tokio_postgres::Config = url.parse()?;
        config.user(role);
        let (client, connection) = config.connect(NoTls).await?;
        // When the connection ends with an error, the next statement of the client fails, so the
        // error is ignored here.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Runs a blocking function with exclusive access to the two database servers.
    pub async fn with_pair<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Pair) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.pair.with(work).await?
    }

    /// Returns the number of lines in the log of the primary that contain this text.
    pub async fn count_in_log(&self, text: &str) -> Result<usize> {
        let text = text.to_owned();
        self.with_pair(move |pair| pair.count_in_log(&text)).await
    }

    /// Directs the proxy and new connections to the server that is the primary now.
    pub async fn follow_primary(&self) -> Result<()> {
        let (url, socket) = self
            .with_pair(|pair| Ok((pair.connection_string(), pair.socket())))
            .await?;
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = url;
        self.database_proxy.switch(Target::Unix(socket));
        Ok(())
    }

    /// Kills the broker with SIGKILL and restarts it.
    pub async fn crash_broker(&self) -> Result<()> {
        self.broker.with(Broker::crash).await?
    }

    /// Records poison messages that were sent, for the checker.
    pub fn note_poison(&self, sent: impl IntoIterator<Item = SentPoison>) {
        self.poison
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(sent);
    }

    /// Returns all poison messages that were sent.
    #[must_use]
    pub fn poison(&self) -> Vec<SentPoison> {
        self.poison
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until `sql`, which returns one boolean, returns true. Retries after errors of the
    /// database. `what` names the condition in the error message.
    ///
    /// # Errors
    /// When the condition is not true within `patience`.
    pub async fn until(&self, what: &str, patience: Duration, sql: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let look = async { anyhow::Ok(self.connect().await?.query_one(sql, &[]).await?) };
            let result = look.await.and_then(|row| Ok(row.try_get::<_, bool>(0)?));
            if matches!(result, Ok(true)) {
                return Ok(());
            }
            if began.elapsed() > patience {
                bail!("not true within {patience:?}: {what} (last result: {result:?})");
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Executes statements that need a lock. The running processes compete for the same lock.
    /// Retries after a lock timeout (55P03) or a deadlock (40P01).
    ///
    /// # Errors
    /// When a statement fails with another SQLSTATE, or when the lock is not acquired within two
    /// minutes.
    pub async fn insist(&self, sql: &str) -> Result<()> {
        let client = self.connect().await?;
        client.batch_execute("SET lock_timeout = '500ms'").await?;
        let began = Instant::now();
        while let Err(error) = client.batch_execute(sql).await {
            let is_locked = error
                .code()
                .is_some_and(|code| matches!(code.code(), "55P03" | "40P01"));
            if !is_locked || began.elapsed() > PATIENCE {
                return Err(error).context(sql.to_owned());
            }
        }
        Ok(())
    }
}

/// The connection option that puts the schema of the range first in the search path.
const SEARCH_PATH: &str = "options='-c search_path=range,public'";
