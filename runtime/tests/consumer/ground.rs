//! A database for each test, with the table `done` that the handlers write to.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{Manager, Pool};
use idem_fixtures::Server;
use idem_runtime::{Handled, Message, Tx};
use tokio_postgres::NoTls;

/// The longest time that a test waits for one state. Each state is reached earlier, even on a busy
/// machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct Ground {
    pub pool: Pool,
    database: String,
    // This field is declared after the pool, so that the connections close before the server stops.
    // The server stops when the last test drops its reference.
    server: Arc<Server>,
}

impl Ground {
    pub async fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let server = Server::shared("consumer");
        let database = format!("consumer_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.psql("postgres", &format!("CREATE DATABASE {database}"));
        server.psql(&database, SCHEMA);
        Self {
            pool: pool(&server.url(&database)),
            database,
            server,
        }
    }

    pub fn url(&self) -> String {
        self.server.url(&self.database)
    }

    /// Returns true if the pool connects through PgBouncer.
    pub fn is_proxied(&self) -> bool {
        self.server.is_proxied()
    }

    /// Returns a pool of connections as `role` that bypass every proxy.
    pub fn pool_of(&self, role: &str) -> Pool {
        let mut config: tokio_postgres::Config =
            self.server.direct_url(&self.database).parse().unwrap();
        config.user(role);
        Pool::builder(Manager::new(config, NoTls))
            .max_size(4)
            .build()
            .unwrap()
    }

    /// Executes SQL directly at the server. Each statement is its own transaction.
    pub fn psql(&self, sql: &str) {
        self.server.psql(&self.database, sql);
    }

    /// Renames the database, so that connection attempts fail. This requires that no connection to
    /// the database is open.
    pub fn take_away(&self) -> Away<'_> {
        let away = format!("{}_away", self.database);
        self.server.psql(
            "postgres",
            &format!("ALTER DATABASE {} RENAME TO {away}", self.database),
        );
        Away { ground: self, away }
    }

    /// Returns the log of the server, which all tests of this test program share.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Returns the ids in the table `done` in the order of insertion, one for each time that a
    /// message took effect.
    pub async fn done(&self) -> Vec<String> {
        done(&self.pool).await
    }
}

/// A database that was renamed, so that connection attempts fail.
pub struct Away<'g> {
    ground: &'g Ground,
    away: String,
}

impl Away<'_> {
    /// Returns the number of connection attempts that the server has rejected.
    pub fn refusals(&self) -> usize {
        let rejection = format!("database \"{}\" does not exist", self.ground.database);
        self.ground.log().matches(&rejection).count()
    }

    pub fn give_back(self) {
        let Self { ground, away } = self;
        ground.server.psql(
            "postgres",
            &format!("ALTER DATABASE {away} RENAME TO {}", ground.database),
        );
    }
}

pub const SCHEMA: &str = "CREATE EXTENSION idem;
     -- The first claim of a destination blocks other claims until its transaction ends, and some
     -- tests keep that transaction open.
     SELECT idem_configure('drain', '1 day');
     CREATE TABLE done (place bigserial, id text, key text, tx xid8 DEFAULT pg_current_xact_id())";

pub async fn done(pool: &Pool) -> Vec<String> {
    let client = pool.get().await.unwrap();
    let rows = client
        .query_typed("SELECT id FROM done ORDER BY place", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

pub fn pool(url: &str) -> Pool {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(12).build().unwrap()
}

/// Returns a message with this id, and with this key unless `key` is empty.
pub fn message(id: impl Into<String>, key: &str) -> Message {
    let message = Message::new("tests", "{}").with_message_id(id);
    if key.is_empty() {
        message
    } else {
        message.with_key(key)
    }
}

/// Inserts one row into `done`: the business write of all these tests.
pub async fn note(tx: &Tx, message: &Message) -> Result<(), tokio_postgres::Error> {
    use tokio_postgres::types::Type;
    tx.execute_typed(
        "INSERT INTO done (id, key) VALUES ($1, $2)",
        &[
            (&message.message_id(), Type::TEXT),
            (&message.key(), Type::TEXT),
        ],
    )
    .await
    .map(drop)
}

/// Returns a handler that inserts one row into `done` and does nothing else.
pub fn noting()
-> impl Fn(Tx, Message) -> Pin<Box<dyn Future<Output = Handled> + Send>> + Send + Sync + 'static {
    |tx, message| {
        Box::pin(async move {
            note(&tx, &message).await?;
            Ok(vec![])
        })
    }
}

/// Waits until `reached` returns true. Panics after `DEADLINE`.
pub async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !reached().await {
        assert!(
            started.elapsed() < DEADLINE,
            "timed out after {DEADLINE:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a future. Panics after `DEADLINE`.
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work)
        .await
        .expect("timed out")
}
