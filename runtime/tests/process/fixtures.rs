//! Fixtures: a database with a business table, and queries on its state.

use deadpool_postgres::Pool;
use idem_client::{Destination, Effect, MessageId, RecordedEffect};
use idem_runtime::{
    Handled, Idem, Message, Policies, Tx,
    policy::{Policy, Style},
};
use idem_testkit::{Database, until};
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

pub const DESTINATION: &str = "process.tests";

pub struct Fixture {
    pub database: Database,
    pub pool: Pool,
    pub observer: Client,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::on(Database::create()).await
    }

    pub async fn on(database: Database) -> Self {
        let observer = database.client().await;
        // The table has no primary key, so that duplicate inserts are visible.
        observer
            .batch_execute("CREATE TABLE work (id text)")
            .await
            .unwrap();
        Self {
            pool: database.pool(4),
            observer,
            database,
        }
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

    /// Asserts that the message has one claim, one row and one effect.
    pub async fn assert_done_once(&self, message: &Message) {
        assert!(self.is_claimed(message).await, "{message:?} is not claimed");
        assert_eq!(self.work(message).await, 1, "rows of {message:?}");
        assert_eq!(
            self.effects(message).await.len(),
            1,
            "effects of {message:?}"
        );
    }

    /// Asserts that the message has no claim, no row and no effect.
    pub async fn assert_untouched(&self, message: &Message) {
        assert!(!self.is_claimed(message).await, "{message:?} is claimed");
        assert_eq!(self.work(message).await, 0, "rows of {message:?}");
        assert_eq!(
            self.effects(message).await.len(),
            0,
            "effects of {message:?}"
        );
    }

    /// Waits until all sessions except that of the observer are idle and outside of transactions.
    pub async fn until_quiet(&self) {
        until("no session is in a transaction", || async {
            self.count(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND backend_type = 'client backend'
                 AND pid <> pg_backend_pid() AND state <> 'idle'",
            )
            .await
                == 0
        })
        .await;
    }
}

pub fn message() -> Message {
    Message::new(DESTINATION, "{}").with_message_id(Uuid::new_v4().to_string())
}

pub fn destination() -> Destination {
    Destination::new(DESTINATION).unwrap()
}

pub fn id(message: &Message) -> MessageId {
    MessageId::text(message.message_id().unwrap()).unwrap()
}

pub fn idem(rule: impl FnOnce(&mut Policy)) -> Idem {
    preparing_idem(false, rule)
}

/// Returns an instance that prepares its statements if `prepared` is true.
pub fn preparing_idem(prepared: bool, rule: impl FnOnce(&mut Policy)) -> Idem {
    Idem::builder()
        .policies(Policies::default().default_rule(rule))
        .prepared_statements(prepared)
        .build()
        .unwrap()
}

/// Returns each style with each value of [`preparing`].
pub fn styles() -> impl Iterator<Item = (Style, bool)> {
    let styles = [Style::Eager, Style::Reactive].into_iter();
    styles.flat_map(|style| preparing().iter().map(move |&prepared| (style, prepared)))
}

pub fn fact() -> Effect {
    Effect::json("process.facts", &json!({"n": 1})).unwrap()
}

/// Inserts one row and returns one effect.
pub async fn work(tx: Tx, message: Message) -> Handled {
    insert(&tx, &message).await?;
    Ok(vec![fact()])
}

pub async fn insert(client: &Client, message: &Message) -> Result<u64, tokio_postgres::Error> {
    let id = message.message_id();
    client
        .execute_typed(
            "INSERT INTO work VALUES ($1)",
            &[(&id, tokio_postgres::types::Type::TEXT)],
        )
        .await
}

/// Returns the values of `prepared_statements` to test. A pooler that can assign a different
/// connection to each transaction does not support prepared statements.
pub fn preparing() -> &'static [bool] {
    match std::env::var_os("IDEM_TEST_PGBOUNCER") {
        Some(_) => &[false],
        None => &[false, true],
    }
}
