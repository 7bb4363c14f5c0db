//! Messages of one key are handled one after the other, in the order in which they were received,
//! also when several consumers share the inbox.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use idem_runtime::{Handled, Message, Tx, consumer::Batches};
use rand::RngExt;

use crate::fixtures::{Fixture, Running, note};

const KEYS: usize = 9;
const MESSAGES: usize = 270;

/// A handler that fails with a probability of 25 %, at most once for each message. It panics if two
/// messages of one key are handled at the same time.
#[derive(Clone, Default)]
struct Moody {
    failed: Arc<Mutex<HashSet<String>>>,
    at_work: Arc<Mutex<HashSet<String>>>,
}

impl Moody {
    async fn handle(self, tx: Tx, message: Message) -> Handled {
        let key = message.key().unwrap_or_default().to_owned();
        assert!(
            self.at_work.lock().unwrap().insert(key.clone()),
            "two messages of {key} are handled at the same time"
        );
        let handled = self.note_or_fail(tx, &message).await;
        self.at_work.lock().unwrap().remove(&key);
        handled
    }

    async fn note_or_fail(&self, tx: Tx, message: &Message) -> Handled {
        note(&tx, message).await?;
        let pause = rand::rng().random_range(0..3);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let id = message.message_id().unwrap_or_default().to_owned();
        if rand::rng().random_bool(0.25) && self.failed.lock().unwrap().insert(id) {
            return Err("fails once".into());
        }
        Ok(vec![])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_order_holds_across_consumers_with_failing_handlers() {
    for batches in [1, 20] {
        let fixture = Fixture::new().await;
        fixture
            .retries("max_attempts => 10, base => '20 ms', cap => '20 ms'")
            .await;
        for n in 0..MESSAGES {
            fixture
                .receive(&format!("{n}"), &format!("key-{}", n % KEYS))
                .await;
        }
        let flaky = Moody::default();
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let flaky = flaky.clone();
                let consumer = fixture
                    .consumer(&fixture.db.pool(6))
                    .handle(fixture.to.as_str(), move |tx, message| {
                        flaky.clone().handle(tx, message)
                    });
                Running::start(
                    consumer
                        .concurrency(4)
                        .ordered_by_key(true)
                        .batches(Batches::new(batches).linger(Duration::from_millis(1))),
                )
            })
            .collect();
        fixture.until_done(MESSAGES).await;
        fixture.until_empty().await;
        let mut retried = 0;
        for consumer in consumers {
            retried += consumer.stop().await.retried;
        }
        assert!(retried > 0 && fixture.dead().await.is_empty());
        let done = fixture.done().await;
        assert_eq!(done.len(), MESSAGES);
        for key in 0..KEYS {
            let numbers: Vec<usize> = done
                .iter()
                .map(|id| id.parse().unwrap())
                .filter(|n| n % KEYS == key)
                .collect();
            assert!(numbers.is_sorted(), "key {key}: {numbers:?}");
        }
    }
}

#[tokio::test]
async fn other_keys_proceed_while_a_message_waits_for_its_retry() {
    let fixture = Fixture::new().await;
    fixture
        .retries("max_attempts => 3, base => '500 ms', cap => '500 ms'")
        .await;
    for (id, key) in [
        ("poison", "a"),
        ("behind", "a"),
        ("beside", "b"),
        ("without", ""),
    ] {
        fixture.receive(id, key).await;
    }
    let handler = async |tx: Tx, message: Message| {
        if message.message_id() == Some("poison") {
            return Err("never".into());
        }
        note(&tx, &message).await?;
        Ok(vec![])
    };
    let consumer = Running::start(
        fixture
            .consumer(&fixture.db.pool(4))
            .handle(fixture.to.as_str(), handler),
    );
    fixture.until_done(3).await;
    let summary = consumer.stop().await;
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (3, 2, 1)
    );
    assert_eq!(
        fixture.done().await.last().map(String::as_str),
        Some("behind"),
        "the key waits for the failing message until it is a dead letter"
    );
}
