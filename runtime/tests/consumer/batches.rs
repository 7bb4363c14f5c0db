//! The messages of a batch share a transaction, and a poisoned message of a batch fails alone.

use std::{
    future::pending,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::{Effect, MessageId};
use idem_runtime::{
    Consumer, HandlerError, Idem, Message, Policies, Tx,
    consumer::{Batches, Selector},
    filter::{After, Before, Filter},
    policy::{IdStrategy, MissingId},
};
use idem_testkit::{broker::Broker, source_ended};

use crate::fixtures::{Fixture, in_time, message, note, noting};

const BATCH: usize = 25;
const MESSAGES: usize = 4 * BATCH;

/// A batch is handled only when it is full. It has no time limit, which could end it early on a
/// slow machine.
const FULL: Batches = Batches::new(BATCH).linger(Duration::MAX);

fn messages() -> impl Iterator<Item = Message> {
    (0..MESSAGES).map(|n| message(format!("m-{n}"), ""))
}

/// Returns the number of rows that each transaction has written.
async fn rows_by_transaction(fixture: &Fixture) -> Vec<i64> {
    let client = fixture.pool.get().await.unwrap();
    let sql = "SELECT count(*) FROM done GROUP BY tx ORDER BY 1 DESC";
    let rows = client.query_typed(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_is_one_transaction() {
    let fixture = Fixture::new().await;
    let broker = Broker::with(messages()).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("batches", noting())
        .batches(FULL)
        .concurrency(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(summary.handled, MESSAGES as u64);
    assert_eq!(rows_by_transaction(&fixture).await, [BATCH as i64; 4]);
    assert!(broker.told().most_unsettled <= 2 * BATCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_batch_is_handled_after_linger() {
    let fixture = Fixture::new().await;
    let broker = Broker::with(messages().take(3));
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("batches", noting())
        .batches(Batches::new(BATCH).linger(Duration::from_millis(20)));
    let are_acknowledged = async {
        crate::fixtures::until("the three messages are acknowledged", async || {
            broker.told().acknowledged.len() == 3
        })
        .await;
    };
    let summary = in_time(consumer.run(are_acknowledged)).await.unwrap();
    assert_eq!(summary.handled, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn poisoned_message_of_a_batch_fails_alone() {
    let fixture = Fixture::new().await;
    let broker = Broker::with(messages()).closed();
    let handler = async |tx: Tx, message: Message| {
        note(&tx, &message).await?;
        match message.message_id() {
            Some("m-7") => Err(HandlerError::terminal("poison")),
            Some("m-33") => panic!("poison"),
            Some("m-60") => {
                tx.batch_execute("SELECT 1/0").await?;
                Ok(vec![])
            }
            _ => Ok(vec![]),
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("batches", handler)
        .batches(FULL.linger(Duration::from_millis(50)))
        .back_off(Duration::from_millis(1), Duration::from_millis(2))
        .max_deliveries(2)
        .concurrency(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (97, 2, 3)
    );
    let mut rejected: Vec<String> = broker
        .told()
        .rejected
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    rejected.sort();
    assert_eq!(rejected, ["m-33", "m-60", "m-7"]);
    assert_eq!(fixture.done().await.len(), 97);
    // The batch without a poisoned message was still one transaction.
    assert_eq!(rows_by_transaction(&fixture).await[0], BATCH as i64);
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_of_a_batch_take_effect_once() {
    let fixture = Fixture::new().await;
    // Some duplicates are in the same batch, and some are in another batch.
    let twice = messages()
        .flat_map(|message| [message.clone(), message])
        .chain(messages());
    let broker = Broker::with(twice).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("batches", noting())
        .batches(FULL.linger(Duration::from_millis(5)));
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled as usize, summary.duplicates as usize),
        (MESSAGES, 2 * MESSAGES)
    );
    assert_eq!(fixture.done().await.len(), MESSAGES);
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_uses_one_transaction_for_each_destination() {
    let fixture = Fixture::new().await;
    let broker = Broker::with(messages().enumerate().map(|(n, message)| {
        let kind = if n % 2 == 0 { "Even" } else { "Odd" };
        message.with_type(kind)
    }))
    .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(Selector::message_type("Even"), "batches.even", noting())
        .handle("batches.odd", noting())
        .batches(Batches::new(MESSAGES).linger(FULL.linger))
        .concurrency(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(summary.handled as usize, MESSAGES);
    assert_eq!(
        rows_by_transaction(&fixture).await,
        [MESSAGES as i64 / 2; 2]
    );
}

/// A filter that panics before the handler of a message with the type `before`, and after the
/// handler of a message with the type `after`.
struct Panicking {
    broker: Broker,
    /// How many messages were settled when the message `good` came for the first time: none if it
    /// is in a batch with the messages before it.
    settled: Arc<OnceLock<usize>>,
}

impl Filter for Panicking {
    fn before_consuming<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Before> {
        if message
            .message_id()
            .is_some_and(|id| id.starts_with("good"))
        {
            let told = self.broker.told();
            let settled = told.acknowledged.len() + told.retried.len();
            self.settled.get_or_init(|| settled);
        }
        assert_ne!(message.message_type(), Some("before"), "a bug");
        async { Before::Continue }.boxed()
    }

    fn on_consumed<'a>(&'a self, message: &'a Message, _: &'a [Effect]) -> BoxFuture<'a, After> {
        assert_ne!(message.message_type(), Some("after"), "a bug");
        async { After::Continue }.boxed()
    }
}

/// I2: a message without an id is not claimed and has its own transaction. A filter that panics at
/// another message of the same batch does not cause a second run of the handler for this message.
#[tokio::test(flavor = "multi_thread")]
async fn i2_panic_does_not_repeat_unprotected_neighbours() {
    let fixture = Fixture::new().await;
    for place in ["id", "before", "after"] {
        let without_id = Message::new("tests", place);
        let panicking = message(format!("panic-{place}"), "").with_type(place);
        let good = message(format!("good-{place}"), "");
        let broker = Broker::with([without_id, panicking, good]).closed();
        let settled = Arc::default();
        let id = |message: &Message| {
            assert_ne!(message.message_type(), Some("id"), "no id");
            MessageId::text(message.message_id()?).ok()
        };
        let policies = Policies::default().default_rule(|policy| {
            policy.id = IdStrategy::Function(Arc::new(id));
            policy.missing_id = MissingId::Unprotected;
        });
        let idem = Idem::builder()
            .policies(policies)
            .filter(Panicking {
                broker: broker.clone(),
                settled: Arc::clone(&settled),
            })
            .build()
            .unwrap();
        let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
            .idem(idem)
            .handle("batches", noting())
            .batches(Batches::new(3).linger(Duration::from_secs(1)))
            .back_off(Duration::from_millis(1), Duration::from_millis(2))
            .max_deliveries(2)
            .concurrency(1);
        let summary = source_ended(in_time(consumer.run(pending())).await);

        assert_eq!(
            settled.get(),
            Some(&0),
            "{place}: the batch had three messages"
        );
        assert_eq!(
            (summary.handled, summary.retried, summary.rejected),
            (2, 1, 1),
            "{place}: {summary:?}"
        );
        let client = fixture.pool.get().await.unwrap();
        let sql = "SELECT count(*) FILTER (WHERE id IS NULL), count(*) FROM done";
        let row = client.query_one(sql, &[]).await.unwrap();
        assert_eq!((row.get(0), row.get(1)), (1i64, 2i64), "{place}");
        client.batch_execute("TRUNCATE done").await.unwrap();
    }
}
