//! Fixtures: a database with an inbox, and running consumers.

use std::{future::Future, pin::Pin};

use deadpool_postgres::Pool;
use idem_client::{
    Destination, MessageId,
    inbox::{InboxMessage, receive},
};
use idem_runtime::{
    Consumer, Error, Handled, Message, Tx, consumer::Summary, inbox::DurableSource,
};
use idem_testkit::{DEADLINE, Database, until};
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::{Client, Row, types::Type};

pub struct Fixture {
    pub db: Database,
    /// A connection that bypasses every proxy.
    pub client: Client,
    pub to: Destination,
}

impl Fixture {
    /// Creates the database, the table that handlers write to, and a retry policy with three
    /// attempts and a short back-off.
    pub async fn new() -> Self {
        let db = Database::create();
        let client = db.client().await;
        let table = "CREATE TABLE done (place bigserial, id text, key text)";
        client.batch_execute(table).await.unwrap();
        let fixture = Self {
            db,
            client,
            to: Destination::new("tests.inbox").unwrap(),
        };
        fixture
            .retries("max_attempts => 3, base => '20 ms', cap => '20 ms'")
            .await;
        fixture
    }

    /// Sets the retry policy: `policy` contains the arguments of `idem_configure_retries`.
    pub async fn retries(&self, policy: &str) {
        let sql = format!("SELECT idem_configure_retries('{}', {policy})", self.to);
        self.client.batch_execute(&sql).await.unwrap();
    }

    /// Stores a message with this id. If `key` is empty, the message has no key.
    pub async fn receive(&self, id: &str, key: &str) {
        let mut letter = InboxMessage::json(&id).unwrap();
        if !key.is_empty() {
            letter = letter.key(key);
        }
        assert!(
            receive(&self.client, &id_of(id), &self.to, &letter)
                .await
                .unwrap()
        );
    }

    pub fn source(&self, pool: &Pool) -> DurableSource {
        DurableSource::new(pool.clone(), self.to.clone())
    }

    /// Returns a consumer of the inbox. The caller adds the handler.
    pub fn consumer(&self, pool: &Pool) -> Consumer<DurableSource> {
        Consumer::new(pool.clone(), self.source(pool))
    }

    /// Returns the ids of the handled messages in the order of their inserts. A message that took
    /// effect twice appears twice.
    pub async fn done(&self) -> Vec<String> {
        let rows = self
            .client
            .query("SELECT id FROM done ORDER BY place", &[])
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub async fn count_done(&self) -> usize {
        let row = self
            .client
            .query_one("SELECT count(*) FROM done", &[])
            .await
            .unwrap();
        usize::try_from(row.get::<_, i64>(0)).unwrap()
    }

    pub async fn until_done(&self, count: usize) {
        until(&format!("{count} messages are handled"), async || {
            self.count_done().await >= count
        })
        .await;
    }

    /// Returns the number of stored messages that are neither handled nor dead letters.
    pub async fn left(&self) -> i64 {
        self.count("due_at < 'infinity'").await
    }

    /// Returns the number of pending messages that satisfy an SQL condition.
    pub async fn count(&self, what: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM idem.pending WHERE {what}");
        self.client.query_one(&sql, &[]).await.unwrap().get(0)
    }

    pub async fn until_empty(&self) {
        until("the inbox is empty", async || self.left().await == 0).await;
    }

    /// Returns the ids, attempts and last errors of the dead letters.
    pub async fn dead(&self) -> Vec<(String, i32, String)> {
        let sql = "SELECT id, attempt, last_error FROM idem.dead_letters
                    WHERE destination = $1 ORDER BY seq";
        let letters = self.client.query(sql, &[&self.to.as_str()]).await.unwrap();
        let of = |letter: &Row| (letter.get(0), letter.get(1), letter.get(2));
        letters.iter().map(of).collect()
    }

    /// Requeues all dead letters, and returns their number.
    pub async fn requeue_all(&self) -> i32 {
        let sql = "SELECT idem_requeue_all($1)";
        let requeued = self.client.query_one(sql, &[&self.to.as_str()]).await;
        requeued.unwrap().get(0)
    }
}

pub fn id_of(id: &str) -> MessageId {
    MessageId::text(id).unwrap()
}

/// Inserts one row into `done` each time a message takes effect. This is the business write of all
/// these tests.
pub async fn note(tx: &Tx, message: &Message) -> Result<(), tokio_postgres::Error> {
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

/// Returns a handler that only calls `note`.
pub fn noting()
-> impl Fn(Tx, Message) -> Pin<Box<dyn Future<Output = Handled> + Send>> + Send + Sync + 'static {
    |tx, message| {
        Box::pin(async move {
            note(&tx, &message).await?;
            Ok(vec![])
        })
    }
}

/// A consumer that runs in its own task.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, Error>>,
}

impl Running {
    pub fn start<S: idem_runtime::Source>(consumer: Consumer<S>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(consumer.run(async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    /// Requests a shutdown and waits until the consumer has stopped.
    pub async fn stop(self) -> Summary {
        self.stop.send(()).unwrap();
        let ended = tokio::time::timeout(DEADLINE, self.task).await;
        ended.expect("the consumer does not stop").unwrap().unwrap()
    }
}

/// A consumer in its own runtime. `kill` stops the runtime, like a kill of a process.
pub struct Doomed(tokio::runtime::Runtime);

impl Doomed {
    /// Starts the consumer that `consumer` creates with a pool of that runtime.
    pub fn start<S: idem_runtime::Source>(
        fixture: &Fixture,
        consumer: impl FnOnce(Pool) -> Consumer<S>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(consumer(fixture.db.pool(8)).run(std::future::pending()));
        Self(runtime)
    }

    /// Stops everything in the runtime and breaks its connections, as if the process was killed.
    pub fn kill(self) {
        self.0.shutdown_background();
    }
}
