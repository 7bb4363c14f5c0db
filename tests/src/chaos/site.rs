//! Everything that a campaign runs on: two servers, a broker, a proxy before each.

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
use crate::clock::Clock;
use crate::range::live::{
    Kind,
    broker::Broker,
    place::{self, Queue},
};

/// How long the campaign itself tries to get a lock.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long between two looks at a state.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// All servers of a campaign, gone with this.
pub struct Site {
    pair: Arc<Mutex<Pair>>,
    broker: Arc<Mutex<Broker>>,
    /// The wall clock of the servers.
    pub clock: Clock,
    /// What the processes reach the primary through.
    pub database_proxy: Proxy,
    /// What the processes reach the broker through.
    pub broker_proxy: Proxy,
    /// What kind the broker is.
    pub kind: Kind,
    /// Where the broker is, past the proxy.
    pub broker_url: String,
    /// Where the processes find the broker.
    pub proxied_broker_url: String,
    /// Where the processes find the database.
    pub proxied_database: String,
    database: Mutex<String>,
    poison: Mutex<Vec<SentPoison>>,
}

impl Site {
    /// Starts everything, with empty tables and empty queues. The servers can read `dir`.
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
            .context("the queues of the campaign")?;
        Ok(site)
    }

    /// A connection to the primary as superuser, past the proxy.
    ///
    /// # Errors
    /// When the primary is away.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_as("postgres", "campaign").await
    }

    /// The same for another role, under this name.
    ///
    /// # Errors
    /// When the primary is away or refuses.
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
        // How it ends is seen by the client's next statement.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Does something to the two servers that takes long.
    ///
    /// # Errors
    /// That of `work`.
    pub async fn with_pair<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Pair) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pair = Arc::clone(&self.pair);
        spawn_blocking(move || work(&mut pair.lock().unwrap_or_else(PoisonError::into_inner)))
            .await?
    }

    /// How many lines of the primary's log have this text.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn count_in_log(&self, text: &str) -> Result<usize> {
        let text = text.to_owned();
        self.with_pair(move |pair| pair.count_in_log(&text)).await
    }

    /// Leads everything to the server that is the primary now.
    ///
    /// # Errors
    /// None so far.
    pub async fn follow_primary(&self) -> Result<()> {
        let (url, socket) = self
            .with_pair(|pair| Ok((pair.connection_string(), pair.socket())))
            .await?;
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = url;
        self.database_proxy.switch(Target::Unix(socket));
        Ok(())
    }

    /// Kills the broker with SIGKILL and starts it again.
    ///
    /// # Errors
    /// When it does not start.
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

    /// Notes poison that was sent, for the checker.
    pub fn note_poison(&self, sent: impl IntoIterator<Item = SentPoison>) {
        self.poison
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(sent);
    }

    /// All poison that was sent.
    #[must_use]
    pub fn poison(&self) -> Vec<SentPoison> {
        self.poison
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until `sql`, which returns one boolean, returns true. Errors of the database are
    /// waited out, too.
    ///
    /// # Errors
    /// When it is not true in time.
    pub async fn until(&self, what: &str, patience: Duration, sql: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let answer = async {
                anyhow::Ok(
                    self.connect()
                        .await?
                        .query_one(sql, &[])
                        .await?
                        .try_get(0)?,
                )
            };
            let answer: Result<bool> = answer.await;
            if matches!(answer, Ok(true)) {
                return Ok(());
            }
            if began.elapsed() > patience {
                bail!("{what}: not within {patience:?}: {answer:?}");
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Executes statements that need a lock which the load keeps taking, until they have it.
    ///
    /// # Errors
    /// Any error but that of a lock; or after two minutes.
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

/// The tables of the range come first.
const SEARCH_PATH: &str = "options='-c search_path=range,public'";
