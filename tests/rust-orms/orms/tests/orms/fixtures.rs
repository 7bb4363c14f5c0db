//! A database for one test, and a connection that sees what is committed.

use diesel_async::{AsyncConnection, AsyncPgConnection};
use idem_client::tokio_postgres::config::Host;
use idem_client::tokio_postgres::{Client, Config};
use idem_client::{Destination, Effect, MessageId, RecordedEffect, effects};
use idem_rust_orms::consumers::{Message, TABLES};
use idem_testkit::Database;
use sea_orm::{ConnectOptions, DatabaseConnection};
use serde_json::json;

pub struct Fixture {
    pub database: Database,
    pub observer: Client,
}

impl Fixture {
    pub async fn new() -> Self {
        let database = Database::with_idem("orms").await.unwrap();
        let observer = database.client().await;
        observer.batch_execute(TABLES).await.unwrap();
        Self { database, observer }
    }

    /// Returns the settings of a connection to the database.
    pub fn config(&self) -> Config {
        self.database.direct_url().parse().unwrap()
    }

    pub async fn seaorm(&self) -> DatabaseConnection {
        seaorm(&self.config()).await
    }

    pub async fn diesel(&self) -> AsyncPgConnection {
        let url = self.database.direct_url();
        AsyncPgConnection::establish(&url).await.unwrap()
    }

    pub async fn is_claimed(&self, id: &MessageId) -> bool {
        idem_client::is_claimed(&self.observer, id, &payments())
            .await
            .unwrap()
    }

    pub async fn recorded(&self, id: &MessageId) -> Vec<RecordedEffect> {
        effects(&self.observer, id, &payments()).await.unwrap()
    }

    /// Returns the number of messages that are not acknowledged.
    pub async fn queued(&self) -> i64 {
        let sql = "SELECT count(*) FROM queue";
        self.observer.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Waits until this many sessions are idle in a transaction.
    pub async fn until_idle_in_transaction(&self, sessions: i64) {
        let sql = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        loop {
            let row = self.observer.query_one(sql, &[]).await.unwrap();
            if row.get::<_, i64>(0) == sessions {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns the number of payments, and the balance of the account.
    pub async fn paid(&self) -> (i64, i64) {
        let sql = "SELECT (SELECT count(*) FROM payment), balance FROM account";
        let row = self.observer.query_one(sql, &[]).await.unwrap();
        (row.get(0), row.get(1))
    }
}

pub async fn seaorm(config: &Config) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url(config));
    options.max_connections(2);
    sea_orm::Database::connect(options).await.unwrap()
}

/// Returns the URL for SeaORM.
pub fn url(config: &Config) -> String {
    let user = config.get_user().unwrap();
    let database = config.get_dbname().unwrap();
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let host = match &config.get_hosts()[0] {
        Host::Tcp(host) => host.clone(),
        Host::Unix(folder) => folder.display().to_string(),
    };
    format!("postgres://{user}@localhost:{port}/{database}?host={host}&sslmode=disable")
}

pub fn payments() -> Destination {
    Destination::new("payments").unwrap()
}

pub fn id(text: &str) -> MessageId {
    MessageId::text(text).unwrap()
}

pub fn payment(id: &str) -> Message {
    Message {
        id: id.to_owned(),
        account: 7,
        cents: 5,
    }
}

/// Two effects: one with every member, and one with bytes that are no text.
pub fn facts() -> [Effect; 2] {
    let json = Effect::json("facts", &json!({"quotes": "\"\\", "none": null})).unwrap();
    let json = json.key("k").message_type("Fact").header("h", "v");
    [
        json,
        Effect::bytes("bytes", vec![0, 255, 10], "application/x-test"),
    ]
}
