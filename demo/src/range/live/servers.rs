//! The two servers of a run, and their crashes.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_postgres::{Client, NoTls};

use super::{
    broker::Broker,
    business,
    config::{Kind, LiveConfig},
    place::{self, Queue},
    post::{RELAY, RELAY_PARTITIONS},
};

/// The database and the broker of a run, which are stopped when this value is dropped.
pub struct Servers {
    cluster: Shared<Cluster>,
    broker: Shared<Broker>,
    /// The connection string of the database. The schema of the range is the first in its search
    /// path.
    pub database: String,
    /// The URL of the broker, which stays the same when the broker is restarted.
    pub broker_url: String,
    /// The kind of the broker.
    pub kind: Kind,
}

/// A server that one blocking function uses at a time.
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T: Send + 'static> Shared<T> {
    /// Makes a server shared.
    pub fn new(server: T) -> Self {
        Self(Arc::new(Mutex::new(server)))
    }

    /// Starts a blocking function with exclusive access to the server.
    pub fn with<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R> + Send + 'static,
    ) -> JoinHandle<Result<R>> {
        let server = Arc::clone(&self.0);
        spawn_blocking(move || work(&mut server.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// A server of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The broker.
    Broker,
    /// PostgreSQL.
    Database,
}

/// The task that kills and restarts a server.
pub type Crash = JoinHandle<Result<()>>;

impl Servers {
    /// Starts both servers, with empty tables and empty queues.
    pub async fn start(config: &LiveConfig, positions: &[i32]) -> Result<Self> {
        let cluster = spawn_blocking(start_cluster);
        let kind = config.broker;
        let broker = spawn_blocking(move || Broker::start(kind)).await??;
        let cluster = cluster.await??;
        let database = format!(
            "{} options='-c search_path={},public'",
            cluster.connection_string("postgres"),
            business::SCHEMA
        );
        let servers = Self {
            database,
            broker_url: broker.url.clone(),
            kind,
            cluster: Shared::new(cluster),
            broker: Shared::new(broker),
        };
        let client = servers.connect().await?;
        business::set_up(&client, config.field.players, positions).await?;
        client
            .execute(
                "SELECT idem_create_relay($1, $2), idem_drop_relay('default')",
                &[&RELAY, &RELAY_PARTITIONS],
            )
            .await?;
        place::make(kind, &servers.broker_url, &Queue::ALL)
            .await
            .context("cannot create the queues of the range")?;
        Ok(servers)
    }

    /// Opens a connection to the database.
    pub async fn connect(&self) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.database, NoTls).await?;
        // When the connection ends with an error, the next statement of the client returns the
        // error.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Returns the number of messages in a queue.
    pub async fn waiting(&self, queue: Queue) -> Result<u64> {
        place::waiting(self.kind, &self.broker_url, queue).await
    }

    /// Kills a server with SIGKILL and restarts it with its data and its address.
    pub fn crash(&self, server: Server) -> Crash {
        match server {
            Server::Broker => self.broker.with(Broker::crash),
            Server::Database => self.cluster.with(|cluster| {
                cluster.kill()?;
                cluster.start()
            }),
        }
    }
}

fn start_cluster() -> Result<Cluster> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("live-range")
        .setting("shared_buffers", "64MB")
        // Batches update targets in different orders, so deadlocks are frequent and must be
        // detected early.
        .setting("deadlock_timeout", "50ms")
        .start()?;
    cluster.psql("postgres", "CREATE EXTENSION idem")?;
    Ok(cluster)
}
