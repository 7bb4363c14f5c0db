//! Fixtures: a database for one test, connected with sqlx and with the driver of the client.

use idem_client::{Destination, Effect, Error, MessageId, try_claim};
use idem_sqlx::SqlxTransaction;
use idem_testkit::Database;
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{PgPool, Postgres, Transaction};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config};

pub struct Fixture {
    pub database: Database,
    pub pool: PgPool,
    /// A connection of `tokio-postgres`, which sees what is committed.
    pub observer: Client,
}

impl Fixture {
    pub async fn new() -> Self {
        let database = Database::create();
        let observer = database.client().await;
        let table = "CREATE TABLE work (id text)";
        observer.batch_execute(table).await.unwrap();
        Self {
            // Not through PgBouncer: a test of its own shows what is needed there.
            pool: pool(&database.direct_url().parse().unwrap()).await,
            observer,
            database,
        }
    }

    /// Returns how many times the work of a message was committed.
    pub async fn work(&self, id: &MessageId) -> i64 {
        let sql = "SELECT count(*) FROM work WHERE id = $1";
        let row = self.observer.query_one(sql, &[&id.to_string()]).await;
        row.unwrap().get(0)
    }

    pub async fn is_claimed(&self, id: &MessageId) -> bool {
        idem_client::is_claimed(&self.observer, id, &destination())
            .await
            .unwrap()
    }
}

/// Returns a pool of sqlx with the settings of `tokio-postgres`.
pub async fn pool(config: &Config) -> PgPool {
    let options = PgConnectOptions::new()
        .username(config.get_user().unwrap())
        .database(config.get_dbname().unwrap())
        .port(config.get_ports().first().copied().unwrap_or(5432))
        .ssl_mode(PgSslMode::Disable);
    let options = match &config.get_hosts()[0] {
        Host::Tcp(host) => options.host(host),
        Host::Unix(folder) => options.socket(folder),
    };
    let pool = PgPoolOptions::new().max_connections(2);
    pool.connect_with(options).await.unwrap()
}

/// Claims a message. Returns whether it is new.
pub async fn claims(tx: &mut Transaction<'_, Postgres>, id: &MessageId) -> Result<bool, Error> {
    let idem = SqlxTransaction::new(tx);
    let claim = try_claim(&idem, id, &destination()).await?;
    Ok(claim.is_new())
}

/// Returns the process of the server that executes the transaction.
pub async fn pid_of(tx: &mut Transaction<'_, Postgres>) -> i32 {
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()");
    pid.fetch_one(&mut **tx).await.unwrap()
}

pub fn destination() -> Destination {
    Destination::new("sqlx.tests").unwrap()
}

pub fn id(text: &str) -> MessageId {
    MessageId::text(text).unwrap()
}

pub fn fact() -> Effect {
    Effect::json("sqlx.facts", &json!({"n": 1})).unwrap()
}
