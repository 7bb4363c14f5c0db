//! Fixtures that the tests of the client share: one server for each test program, and one database
//! for each test.

// Not every test program uses all of these fixtures.
#![allow(dead_code)]

mod server;
pub mod standby;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{Manager, Pool};
use tokio_postgres::{Client, NoTls};

pub use server::Server;

/// The longest time that a test waits for one state. Each state is reached earlier, even on a busy
/// machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A database with the extension, on the server that all tests of a program share.
pub struct Database {
    pub name: String,
    /// The shared server. It stops when the last test drops its reference.
    pub server: Arc<Server>,
}

impl Database {
    pub fn create() -> Self {
        Self::create_on(Server::shared("client"))
    }

    /// Creates a database on a new server, which no other test has changed.
    pub fn create_alone(server: &str) -> Self {
        Self::create_on(Arc::new(Server::start(server)))
    }

    fn create_on(server: Arc<Server>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.psql("postgres", &format!("CREATE DATABASE {name}"));
        server.psql(&name, "CREATE EXTENSION idem");
        Self { name, server }
    }

    /// Returns the URL through which the program under test connects. The URL may lead to
    /// PgBouncer.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Returns a URL that bypasses every proxy, for queries on sessions and locks.
    pub fn direct_url(&self) -> String {
        self.server.direct_url(&self.name)
    }

    pub fn pool(&self, size: usize) -> Pool {
        let manager = Manager::new(self.url().parse().unwrap(), NoTls);
        Pool::builder(manager).max_size(size).build().unwrap()
    }

    pub async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.direct_url(), NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
    }
}

/// Waits until `is_so` returns true. Panics after `DEADLINE`.
pub async fn until<F, Fut>(what: &str, mut is_so: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = Instant::now() + DEADLINE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for a future. Panics after `DEADLINE`.
pub async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what)
        .await
        .expect("timed out")
}

/// Returns the summary of a consumer that stopped because its source ended. This end is an error,
/// because no shutdown was requested.
#[cfg(feature = "runtime")]
pub fn source_ended(
    ended: Result<idem_client::Summary, idem_client::Error>,
) -> idem_client::Summary {
    match ended {
        Err(idem_client::Error::SourceEnded(ended)) => ended.summary,
        other => panic!("not the error `SourceEnded`: {other:?}"),
    }
}
