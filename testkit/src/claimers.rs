//! Sessions that process messages once while a test changes the server.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use rand::RngExt as _;
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls};

use super::{Session, until};

const CLAIMERS: usize = 3;
/// The pause before a session is opened again.
const BETWEEN_CONNECTS: Duration = Duration::from_millis(10);
const SETTINGS: &str = "options='-c statement_timeout=120s'";

/// Sessions that claim messages, many of them repeatedly, in a database with the extension. Each
/// new claim inserts a row into the table `done`.
pub struct Claimers {
    load: Arc<Load>,
    tasks: JoinSet<Result<(), Error>>,
}

struct Load {
    url: String,
    /// The messages with smaller numbers exist.
    messages: AtomicU64,
    claimed: AtomicU64,
    /// The number of claims that failed because the library does not serve the extension.
    unserved: AtomicU64,
    is_over: AtomicBool,
}

impl Claimers {
    /// Creates the table `done` and starts the sessions. They continue after a restart of the
    /// server, and when the library serves the version of the extension again.
    pub async fn start(cluster: &Cluster, session: &Session) -> Result<Self> {
        session.run("CREATE TABLE done (id text)").await?;
        let database = session.text("SELECT current_database()").await?;
        let load = Arc::new(Load {
            url: format!("{} {SETTINGS}", cluster.connection_string(&database)),
            messages: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            unserved: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..CLAIMERS {
            tasks.spawn(work(Arc::clone(&load)));
        }
        Ok(Self { load, tasks })
    }

    /// Waits until this many further messages are claimed.
    pub async fn until_claimed(&mut self, count: u64) -> Result<()> {
        self.until_more("messages are claimed", count, |load| &load.claimed)
            .await
    }

    /// Waits until this many further claims have failed because the library does not serve the
    /// extension.
    pub async fn until_unserved(&mut self, count: u64) -> Result<()> {
        self.until_more("claims are not served", count, |load| &load.unserved)
            .await
    }

    async fn until_more(
        &mut self,
        what: &str,
        count: u64,
        counter: impl Fn(&Load) -> &AtomicU64,
    ) -> Result<()> {
        let counted = |load: &Load| counter(load).load(Ordering::Relaxed);
        let before = counted(&self.load);
        until(what, async || {
            if let Some(ended) = self.tasks.try_join_next() {
                ended??;
            }
            Ok(counted(&self.load) >= before + count)
        })
        .await
    }

    /// Ends the sessions. Ensures that each message was done once, and that no claim was lost.
    ///
    /// # Errors
    /// Fails when a session or a check has failed.
    pub async fn ensure_each_done_once(mut self, session: &Session) -> Result<()> {
        self.load.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let twice = "SELECT count(*) - count(DISTINCT id) FROM done";
        let twice = session.text(twice).await?;
        ensure!(twice == "0", "{twice} messages were done twice");
        let lost = "SELECT count(*) FROM done WHERE idem_try_claim(id, 'orders')";
        session.run("BEGIN").await?;
        let lost = session.text(lost).await?;
        ensure!(lost == "0", "{lost} claims were lost");
        session.run("COMMIT").await
    }
}

/// Claims messages until the load is over.
async fn work(load: Arc<Load>) -> Result<(), Error> {
    while !load.is_over.load(Ordering::Relaxed) {
        let claimed = async {
            let (client, connection) = tokio_postgres::connect(&load.url, NoTls).await?;
            tokio::spawn(connection);
            while !load.is_over.load(Ordering::Relaxed) {
                one(&client, &load).await?;
            }
            Ok::<(), Error>(())
        };
        match claimed.await {
            Err(error) if is_shutdown(&error) => {}
            Err(error) if error.code() == Some(&SqlState::SYSTEM_ERROR) => {
                load.unserved.fetch_add(1, Ordering::Relaxed);
            }
            ended => ended?,
        }
        tokio::time::sleep(BETWEEN_CONNECTS).await;
    }
    Ok(())
}

/// Returns whether the connection is lost, or the server stops, starts or recovers (class 57P of
/// SQLSTATE).
fn is_shutdown(error: &Error) -> bool {
    let is_starting = |state: &SqlState| state.code().starts_with("57P");
    error.is_closed()
        || error
            .source()
            .is_some_and(|cause| cause.is::<std::io::Error>())
        || error.code().is_some_and(is_starting)
}

/// Processes a message once. Chooses a new message or an old one.
async fn one(client: &Client, load: &Load) -> Result<(), Error> {
    let newest = load.messages.fetch_add(1, Ordering::Relaxed);
    let id = rand::rng().random_range(newest / 2..=newest);
    client.batch_execute("BEGIN").await?;
    let claim = format!("SELECT idem_try_claim('m{id}', 'orders')");
    let is_new: bool = client.query_one(&claim, &[]).await?.try_get(0)?;
    if is_new {
        client
            .batch_execute(&format!("INSERT INTO done VALUES ('m{id}')"))
            .await?;
    }
    client.batch_execute("COMMIT").await?;
    load.claimed.fetch_add(u64::from(is_new), Ordering::Relaxed);
    Ok(())
}
