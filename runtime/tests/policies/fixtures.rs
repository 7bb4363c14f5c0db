//! Fixtures: a table of facts, and a handler that inserts one row each time a message takes effect.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use deadpool_postgres::Pool;
use idem_client::Effect;
use idem_runtime::{HandlerError, Idem, Message, Policies, Processed, Tx, policy::Policy};
use idem_testkit::Database;
use serde_json::json;
use tokio_postgres::{Client, types::Type};

pub struct Fixture {
    pub pool: Pool,
    pub client: Client,
    /// Dropped last: it removes the database.
    _database: Database,
    /// The number of handler runs.
    pub calls: Arc<AtomicU32>,
}

impl Fixture {
    pub async fn new() -> Self {
        let database = Database::create();
        let client = database.client().await;
        client
            .batch_execute("CREATE TABLE fact (topic text, id text, payload text)")
            .await
            .unwrap();
        Self {
            pool: database.pool(8),
            client,
            _database: database,
            calls: Arc::default(),
        }
    }

    pub async fn process(
        &self,
        idem: &Idem,
        message: &Message,
    ) -> Result<Processed, idem_runtime::Error> {
        idem.process(&self.pool, message, |tx, message| {
            self.calls.fetch_add(1, Ordering::Relaxed);
            note(tx, message)
        })
        .await
    }

    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    pub async fn count(&self, what: &str) -> i64 {
        let row = self
            .client
            .query_one(&format!("SELECT count(*) FROM {what}"), &[])
            .await
            .unwrap();
        row.get(0)
    }

    /// Returns how many times messages have taken effect.
    pub async fn facts(&self) -> i64 {
        self.count("fact").await
    }

    pub async fn claims(&self) -> i64 {
        self.count("idem.inbox").await
    }

    /// Returns the topics and types of all recorded and sent effects, in order.
    pub async fn outbox(&self) -> Vec<(String, Option<String>)> {
        let rows = self
            .client
            .query("SELECT topic, type FROM idem.outbox ORDER BY seq", &[])
            .await;
        rows.unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect()
    }
}

pub async fn note(tx: Tx, message: Message) -> Result<Vec<Effect>, HandlerError> {
    let payload = String::from_utf8_lossy(message.payload()).into_owned();
    tx.query_typed(
        "INSERT INTO fact VALUES ($1, $2, $3)",
        &[
            (&message.topic(), Type::TEXT),
            (&message.message_id(), Type::TEXT),
            (&payload, Type::TEXT),
        ],
    )
    .await?;
    Ok(vec![Effect::json(
        "facts",
        &json!({ "of": message.topic() }),
    )?])
}

/// Returns an `Idem` with this rule for all destinations.
pub fn idem(rule: impl FnOnce(&mut Policy)) -> Idem {
    with(Policies::default().default_rule(rule))
}

pub fn with(policies: Policies) -> Idem {
    Idem::builder().policies(policies).build().unwrap()
}

pub fn message(id: &str) -> Message {
    Message::new("tests", "{}").with_message_id(id)
}

pub fn is_new(processed: &Result<Processed, idem_runtime::Error>) -> bool {
    matches!(processed, Ok(Processed::New { .. }))
}

pub fn is_duplicate(processed: &Result<Processed, idem_runtime::Error>) -> bool {
    matches!(processed, Ok(Processed::Duplicate { .. }))
}
