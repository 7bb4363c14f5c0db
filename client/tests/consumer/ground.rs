//! A database for one test, with the table that handlers write to.

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
use idem_client::{Handled, Message, Tx};
use tokio_postgres::NoTls;

use crate::support::Server;

/// Longer than anything takes on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct Ground {
    pub pool: Pool,
    database: String,
    // After the pool: the last test that runs takes the server down.
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

    /// Whether the pool's connections lead to a pooler.
    pub fn is_proxied(&self) -> bool {
        self.server.is_proxied()
    }

    /// Connections of another role, past every proxy.
    pub fn pool_of(&self, role: &str) -> Pool {
        let mut config: tokio_postgres::Config =
            self.server.direct_url(&self.database).parse().unwrap();
        config.user(role);
        Pool::builder(Manager::new(config, NoTls))
            .max_size(4)
            .build()
            .unwrap()
    }

    /// Runs SQL past every proxy, each statement by itself.
    pub fn psql(&self, sql: &str) {
        self.server.psql(&self.database, sql);
    }

    /// Takes the database away: nothing can connect to it. Nothing may be connected.
    pub fn take_away(&self) -> Away<'_> {
        let away = format!("{}_away", self.database);
        self.server.psql(
            "postgres",
            &format!("ALTER DATABASE {} RENAME TO {away}", self.database),
        );
        Away { ground: self, away }
    }

    /// What the server has logged, for all tests of the program.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// What was handled, in the order of its writing: ids, each as often as it took effect.
    pub async fn done(&self) -> Vec<String> {
        done(&self.pool).await
    }
}

/// A database that nothing can connect to.
pub struct Away<'g> {
    ground: &'g Ground,
    away: String,
}

impl Away<'_> {
    /// How many attempts to connect the server has refused.
    pub fn refusals(&self) -> usize {
        let refusal = format!("database \"{}\" does not exist", self.ground.database);
        self.ground.log().matches(&refusal).count()
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
     -- The first claim of a destination makes others wait for its transaction, and some tests keep that open.
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

/// A message with an id, and a key if it is not empty.
pub fn message(id: impl Into<String>, key: &str) -> Message {
    let message = Message::new("tests", "{}").with_message_id(id);
    if key.is_empty() {
        message
    } else {
        message.with_key(key)
    }
}

/// The business of all these tests: one row for each time that a message takes effect.
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

/// A handler that does this business and nothing else.
pub fn noting()
-> impl Fn(Tx, Message) -> Pin<Box<dyn Future<Output = Handled> + Send>> + Send + Sync + 'static {
    |tx, message| {
        Box::pin(async move {
            note(&tx, &message).await?;
            Ok(vec![])
        })
    }
}

/// Waits for a state.
pub async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !reached().await {
        assert!(
            started.elapsed() < DEADLINE,
            "{what}: not within {DEADLINE:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails when this takes longer than the deadline.
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work)
        .await
        .expect("it ends in time")
}
