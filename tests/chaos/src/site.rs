//! The servers of a campaign: the primary and its standby, the broker, and the proxies in front of
//! the primary and the broker.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::spawn_blocking;
use tokio_postgres::{Client, NoTls};

use super::config::CampaignConfig;
use super::faults::poison::SentPoison;
use super::pair::Pair;
use super::proxy::{Proxy, Target};
use super::schema;
use idem_demo::range::live::{
    Kind,
    broker::Broker,
    place::{self, Queue},
};
use idem_testkit::clock::Clock;

/// The longest time for which the campaign retries to acquire a lock.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interval between two checks of a condition.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// All servers of a campaign, which are stopped when this value is dropped.
pub struct Site {
    pair: Arc<Mutex<Pair>>,
    broker: Arc<Mutex<Broker>>,
    /// The wall clock of the servers.
    pub clock: Clock,
    /// The proxy between the processes and the primary.
    pub database_proxy: Proxy,
    /// The proxy between the processes and the broker.
    pub broker_proxy: Proxy,
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
    ///
    /// # Errors
    /// When a server does not start.
    pub async fn start(config: &CampaignConfig, dir: &Path, positions: &[i32]) -> Result<Self> {
        let kind = config.broker;
        let clock = Clock::wrong_by(0)?;
        let broker = Broker::start(kind)?;
        let pair = Pair::start(dir, &clock)?;
        let (database_proxy, broker_proxy) = (
            Proxy::start(Target::Unix(pair.socket())).await?,
            Proxy::start(Target::Tcp(broker.port())).await?,
        );
        let broker_url = broker.url();
        let site = Self {
            proxied_broker_url: broker_url
                .replace(&broker.port().to_string(), &broker_proxy.port().to_string()),
            proxied_database: format!(
                "host=127.0.0.1 port={} user=postgres dbname=postgres {SEARCH_PATH}",
                database_proxy.port()
            ),
            database: Mutex::new(pair.connection_string()),
            pair: Arc::new(Mutex::new(pair)),
            broker: Arc::new(Mutex::new(broker)),
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
    ///
    /// # Errors
    /// When the primary cannot be reached.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_as("postgres", "campaign").await
    }

    /// Opens a connection to the primary with this role and application name, without the proxy.
    ///
    /// # Errors
    /// When the primary cannot be reached or rejects the connection.
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
    ///
    /// # Errors
    /// The error of `work`.
    pub async fn with_pair<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Pair) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pair = Arc::clone(&self.pair);
        spawn_blocking(move || work(&mut pair.lock().unwrap_or_else(PoisonError::into_inner)))
            .await?
    }

    /// Returns the number of lines in the log of the primary that contain this text.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn count_in_log(&self, text: &str) -> Result<usize> {
        let text = text.to_owned();
        self.with_pair(move |pair| pair.count_in_log(&text)).await
    }

    /// Directs the proxy and new connections to the server that is the primary now.
    ///
    /// # Errors
    /// This function returns no error at present.
    pub async fn follow_primary(&self) -> Result<()> {
        let (url, socket) = self
            .with_pair(|pair| Ok((pair.connection_string(), pair.socket())))
            .await?;
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = url;
        self.database_proxy.switch(Target::Unix(socket));
        Ok(())
    }

    /// Kills the broker with SIGKILL and restarts it.
    ///
    /// # Errors
    /// When the broker does not start.
    pub async fn crash_broker(&self) -> Result<()> {
        let broker = Arc::clone(&self.broker);
        spawn_blocking(move || {
            broker
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .crash()
        })
        .await?
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
            let result = async {
                anyhow::Ok(
                    self.connect()
                        .await?
                        .query_one(sql, &[])
                        .await?
                        .try_get(0)?,
                )
            };
            let result: Result<bool> = result.await;
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
        loop {
            match client.batch_execute(sql).await {
                Ok(()) => return Ok(()),
                Err(error)
                    if error
                        .code()
                        .is_some_and(|code| matches!(code.code(), "55P03" | "40P01")) =>
                {
                    if began.elapsed() > PATIENCE {
                        return Err(error).context(sql.to_owned());
                    }
                }
                Err(error) => return Err(error).context(sql.to_owned()),
            }
        }
    }
}

/// The connection option that puts the schema of the range first in the search path.
const SEARCH_PATH: &str = "options='-c search_path=range,public'";
