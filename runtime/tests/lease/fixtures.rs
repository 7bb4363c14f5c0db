//! Fixtures: a database for one test, and queries on its leases.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use deadpool_postgres::Pool;
use idem_brokers::PgBouncer;
use idem_client::{
    Destination, Effect, MessageId, RecordedEffect,
    lease::{Held, Lease, acquire},
};
use idem_runtime::{Error, Handled, Idem, Message, Policies, Processed, Tx, policy::Policy};
use idem_testkit::Database;
use serde_json::json;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

pub use idem_testkit::until;

pub const DESTINATION: &str = "lease.tests";
/// A lease that does not expire during a test.
pub const LONG: Duration = Duration::from_secs(300);
/// A lease that is short enough for a test to wait for its end, and long enough to be renewed in
/// time on a busy machine.
pub const SHORT: Duration = Duration::from_secs(2);

pub struct Fixture {
    pub database: Database,
    pub pool: Pool,
    pub observer: Client,
}

impl Fixture {
    pub async fn new() -> Self {
        let database = Database::create();
        let observer = database.client().await;
        observer
            .batch_execute(&format!(
                "CREATE TABLE work (id text);
                 -- Otherwise the first transactions with the destination wait for each other.
                 SELECT idem_configure('{DESTINATION}', '1 day')"
            ))
            .await
            .unwrap();
        Self {
            pool: database.pool(8),
            observer,
            database,
        }
    }

    /// Sets the maximum number of attempts of a message, and disables the back-off.
    pub async fn attempts(&self, max_attempts: i32) {
        let sql = format!(
            "SELECT idem_configure_retries(
                 '{DESTINATION}', {max_attempts}, base => '0', jitter => 0)"
        );
        self.observer.batch_execute(&sql).await.unwrap();
    }

    pub async fn acquire(&self, message: &Message, lease: Duration) -> Lease {
        acquire(&self.observer, &id(message), &destination(), lease)
            .await
            .unwrap()
    }

    pub async fn acquired(&self, message: &Message, lease: Duration) -> Held {
        match self.acquire(message, lease).await {
            Lease::Acquired(held) => held,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the lease of another holder ends, and then acquires a lease.
    pub async fn acquired_next(&self, message: &Message) -> Held {
        let mut held = None;
        until("the lease expires", async || {
            match self.acquire(message, LONG).await {
                Lease::Acquired(next) => {
                    held = Some(next);
                    true
                }
                Lease::InProgress { .. } => false,
                other => panic!("{other:?}"),
            }
        })
        .await;
        held.unwrap()
    }

    /// Makes the lease of this message expire at once.
    pub async fn expire(&self, message: &Message) {
        for table in ["pending_0", "pending_1"] {
            let sql = format!("UPDATE idem.{table} SET due_at = clock_timestamp() WHERE id = $1");
            self.observer
                .execute(&sql, &[&message.message_id()])
                .await
                .unwrap();
        }
    }

    /// Returns the remaining time of the lease in seconds, or `None` if the message is not leased.
    pub async fn left(&self, message: &Message) -> Option<f64> {
        let sql = "SELECT extract(epoch FROM w.due_at - clock_timestamp())::float8
                     FROM (SELECT 0 AS n, * FROM idem.pending_0
                          UNION ALL SELECT 1, * FROM idem.pending_1) w
                     JOIN idem.pending_rotation t ON t.current = w.n
                    WHERE w.state = 'l' AND w.id = $1";
        let row = self
            .observer
            .query_opt(sql, &[&message.message_id()])
            .await
            .unwrap();
        row.map(|row| row.get(0)).filter(|left| *left > 0.0)
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.observer.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Returns how many times the effect of a message was committed.
    pub async fn work(&self, message: &Message) -> i64 {
        let sql = "SELECT count(*) FROM work WHERE id = $1";
        self.observer
            .query_one(sql, &[&message.message_id()])
            .await
            .unwrap()
            .get(0)
    }

    pub async fn is_claimed(&self, message: &Message) -> bool {
        idem_client::is_claimed(&self.observer, &id(message), &destination())
            .await
            .unwrap()
    }

    pub async fn effects(&self, message: &Message) -> Vec<RecordedEffect> {
        idem_client::effects(&self.observer, &id(message), &destination())
            .await
            .unwrap()
    }

    /// Returns the payload of the dead letter of a message, and the errors of its attempts.
    pub async fn dead_letter(&self, message: &Message) -> (Vec<u8>, Vec<String>) {
        let sql = "SELECT payload, ARRAY(SELECT e ->> 'error' FROM jsonb_array_elements(errors) e)
                     FROM idem.dead_letters WHERE destination = $1 AND id = $2";
        let row = self
            .observer
            .query_one(sql, &[&DESTINATION, &message.message_id()])
            .await
            .unwrap();
        (row.get(0), row.get(1))
    }

    /// Asserts that the message is claimed, has one effect, and is not leased.
    pub async fn assert_done_once(&self, message: &Message) {
        assert!(self.is_claimed(message).await, "{message:?} is not claimed");
        assert_eq!(
            self.effects(message).await.len(),
            1,
            "effects of {message:?}"
        );
        assert_eq!(self.left(message).await, None, "{message:?} is leased");
    }

    /// Asserts that the message is not claimed and has no effect.
    pub async fn assert_undone(&self, message: &Message) {
        assert!(!self.is_claimed(message).await, "{message:?} is claimed");
        assert_eq!(
            self.effects(message).await.len(),
            0,
            "effects of {message:?}"
        );
    }

    /// Waits until all sessions are idle, and all sessions except the observer's are connections of
    /// the pool. After this wait, each connection that was dropped while it was in use is closed,
    /// and all its statements have ended.
    pub async fn until_quiet(&self) {
        self.until_quiet_beside(&self.pool).await;
    }

    /// Does the same as `until_quiet`, for a test that uses only the given pool.
    pub async fn until_quiet_beside(&self, pool: &Pool) {
        let proxy = match self.database.pooler() {
            Some(proxy) => Some(ProxyConsole::connect(proxy, self.database.name()).await),
            None => None,
        };
        until(
            "all sessions are idle connections of the pool",
            async || {
                let pooled = pool.status().size;
                let expected = match &proxy {
                    None => pooled,
                    // A statement of a dropped connection can be on its way to the proxy, and then
                    // to the server. So the number of connections is compared on both sides.
                    Some(proxy) if proxy.count("SHOW CLIENTS").await != pooled => return false,
                    Some(proxy) => proxy.count("SHOW SERVERS").await,
                };
                let sql =
                    "SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity
                        WHERE datname = current_database() AND backend_type = 'client backend'
                          AND pid <> pg_backend_pid()";
                let row = self.observer.query_one(sql, &[]).await.unwrap();
                let (sessions, busy): (i64, i64) = (row.get(0), row.get(1));
                busy == 0 && sessions == i64::try_from(expected).unwrap()
            },
        )
        .await;
    }
}

/// The console of PgBouncer, for the connections of one database.
struct ProxyConsole {
    client: Client,
    database: String,
}

impl ProxyConsole {
    async fn connect(proxy: &PgBouncer, database: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(&proxy.console(), NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        let database = database.to_owned();
        Self { client, database }
    }

    /// Returns the number of rows for this database. `SHOW CLIENTS` has a row for each connection
    /// to the proxy, and `SHOW SERVERS` for each connection of the proxy to the server.
    async fn count(&self, command: &str) -> usize {
        let rows = self.client.simple_query(command).await.unwrap();
        rows.iter()
            .filter(|row| match row {
                SimpleQueryMessage::Row(row) => row.get("database") == Some(&self.database),
                _ => false,
            })
            .count()
    }
}

pub fn message() -> Message {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let id = format!("m-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    Message::new(DESTINATION, r#"{"n": 1}"#).with_message_id(id)
}

pub fn destination() -> Destination {
    Destination::new(DESTINATION).unwrap()
}

pub fn id(message: &Message) -> MessageId {
    MessageId::text(message.message_id().unwrap()).unwrap()
}

pub fn idem(rule: impl FnOnce(&mut Policy)) -> Idem {
    Idem::builder()
        .policies(Policies::default().default_rule(rule))
        .build()
        .unwrap()
}

pub fn fact() -> Effect {
    Effect::json("lease.facts", &json!({"n": 1})).unwrap()
}

/// A handler with a transaction. Inserts one row and returns one effect.
pub async fn work(tx: Tx, message: Message) -> Handled {
    let id = message.message_id();
    tx.execute_typed(
        "INSERT INTO work VALUES ($1)",
        &[(&id, tokio_postgres::types::Type::TEXT)],
    )
    .await?;
    Ok(vec![fact()])
}

pub fn is_new(processed: &Result<Processed, Error>) -> bool {
    matches!(processed, Ok(Processed::New { .. }))
}
