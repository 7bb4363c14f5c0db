//! A database for each test, with the table `done` that the handlers write to.

use std::{future::Future, pin::Pin};

use deadpool_postgres::{Manager, Pool};
use idem_runtime::{Handled, Message, Tx};
use idem_testkit::Database;
use tokio_postgres::NoTls;

pub use idem_testkit::{DEADLINE, in_time, until};

pub struct Fixture {
    pub pool: Pool,
    // This field is declared after the pool, so that the connections close before the database is
    // dropped.
    pub database: Database,
}

impl Fixture {
    pub async fn new() -> Self {
        let database = Database::create();
        database.psql(SCHEMA);
        Self {
            pool: pool(&database.url()),
            database,
        }
    }

    /// Returns a pool of connections as `role` that bypass every proxy.
    pub fn pool_of(&self, role: &str) -> Pool {
        let mut config: tokio_postgres::Config = self.database.direct_url().parse().unwrap();
        config.user(role);
        Pool::builder(Manager::new(config, NoTls))
            .max_size(4)
            .build()
            .unwrap()
    }

    /// Executes SQL directly at the server. Each statement is its own transaction.
    pub fn psql(&self, sql: &str) {
        self.database.psql(sql);
    }

    /// Renames the database, so that connection attempts fail. This requires that no connection to
    /// the database is open.
    pub fn take_away(&self) -> Away<'_> {
        let away = format!("{}_away", self.database.name());
        self.rename(self.database.name(), &away);
        Away {
            fixture: self,
            away,
        }
    }

    fn rename(&self, from: &str, to: &str) {
        let sql = format!("ALTER DATABASE {from} RENAME TO {to}");
        self.database.cluster().psql("postgres", &sql).unwrap();
    }

    /// Returns the log of the server, which all tests of this test program share.
    pub fn log(&self) -> String {
        self.database.cluster().log().unwrap()
    }

    /// Returns the ids in the table `done` in the order of insertion, one for each time that a
    /// message took effect.
    pub async fn done(&self) -> Vec<String> {
        done(&self.pool).await
    }
}

/// A database that was renamed, so that connection attempts fail.
pub struct Away<'g> {
    fixture: &'g Fixture,
    away: String,
}

impl Away<'_> {
    /// Returns the number of connection attempts that the server has rejected.
    pub fn refusals(&self) -> usize {
        let name = self.fixture.database.name();
        let rejection = format!("database \"{name}\" does not exist");
        self.fixture.log().matches(&rejection).count()
    }

    pub fn give_back(self) {
        let Self { fixture, away } = self;
        fixture.rename(&away, fixture.database.name());
    }
}

pub const SCHEMA: &str = "
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
