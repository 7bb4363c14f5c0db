//! Load test: many messages, some of them poisoned, and several consumers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use idem_client::inbox::{InboxMessage, receive_batch};
use idem_runtime::{Handled, Message, Tx};
use idem_testkit::until;

use crate::fixtures::{Fixture, Running, id_of, note};

const MESSAGES: usize = 10_000;
const KEYS: usize = 400;
/// The number of attempts in the retry policy of the fixture.
const ATTEMPTS: i32 = 3;
const CONSUMERS: usize = 8;

/// Returns true for one of a hundred numbers. These numbers are spread over the keys.
fn is_poison(n: usize) -> bool {
    n % 100 == 37
}

#[derive(Clone, Default)]
struct Mixed {
    is_repaired: Arc<AtomicBool>,
    /// The number of attempts of each poisoned message.
    attempts: Arc<Mutex<HashMap<usize, i32>>>,
}

impl Mixed {
    async fn handle(self, tx: Tx, message: Message) -> Handled {
        let n: usize = message.json()?;
        note(&tx, &message).await?;
        if is_poison(n) && !self.is_repaired.load(Ordering::SeqCst) {
            *self.attempts.lock().unwrap().entry(n).or_default() += 1;
            match n % 200 {
                37 => return Err("poison".into()),
                _ => panic!("poison"),
            }
        }
        Ok(vec![])
    }
}

/// Goal: of 10,000 messages, each good message is handled once and in key order, and each poisoned
/// message becomes a dead letter after all its attempts. Requeued dead letters are handled once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn good_messages_are_handled_and_poisoned_become_dead_letters() {
    let fixture = Fixture::new().await;
    let letters: Vec<_> = (0..MESSAGES)
        .map(|n| {
            let letter = InboxMessage::json(&n)
                .unwrap()
                .key(format!("key-{}", n * 7 % KEYS));
            (id_of(&format!("m-{n}")), letter)
        })
        .collect();
    for letters in letters.chunks(1000) {
        let are_new = receive_batch(&fixture.client, &fixture.to, letters)
            .await
            .unwrap();
        assert!(are_new.iter().all(|is_new| *is_new));
    }

    let started = Instant::now();
    let mixed = Mixed::default();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|_| {
            let mixed = mixed.clone();
            let consumer = fixture
                .consumer(&fixture.db.pool(5))
                .handle(fixture.to.as_str(), move |tx, message| {
                    mixed.clone().handle(tx, message)
                });
            Running::start(consumer.concurrency(2))
        })
        .collect();
    let poison: Vec<usize> = (0..MESSAGES).filter(|n| is_poison(*n)).collect();
    let (good, bad) = (MESSAGES - poison.len(), poison.len());
    until_at_least(good, || fixture.count_done()).await;
    until_at_least(bad, async || fixture.dead().await.len()).await;
    fixture.until_empty().await;
    println!("{MESSAGES} messages in {:?}", started.elapsed());
    assert_eq!(fixture.done().await.len(), good);
    assert_in_order_and_once(&fixture.done().await, |n| !is_poison(n), good);
    let dead = fixture.dead().await;
    assert_eq!(dead.len(), bad);
    for (id, attempt, error) in &dead {
        assert!(
            *attempt == ATTEMPTS && error.contains("poison"),
            "{id}: {attempt} {error}"
        );
    }
    let attempts = mixed.attempts.lock().unwrap().clone();
    assert!(
        attempts.len() == bad && attempts.values().all(|count| *count == ATTEMPTS),
        "{attempts:?}"
    );

    mixed.is_repaired.store(true, Ordering::SeqCst);
    assert_eq!(fixture.requeue_all().await, bad as i32);
    fixture.until_done(MESSAGES).await;
    fixture.until_empty().await;
    for consumer in consumers {
        let summary = consumer.stop().await;
        assert_eq!(summary.failed_settlements, 0);
    }
    let done = fixture.done().await;
    assert_eq!((done.len(), fixture.dead().await.len()), (MESSAGES, 0));
    assert_in_order_and_once(&done[good..], is_poison, bad);
}

/// Waits until `count` returns at least `expected`. Fails if the count does not grow within the
/// time limit of [`until`]. The whole wait has no time limit, because its length depends on the
/// speed of the machine.
async fn until_at_least<F: Future<Output = usize>>(expected: usize, count: impl Fn() -> F) {
    let mut seen = count().await;
    while seen < expected {
        until("another message is handled", async || count().await > seen).await;
        seen = count().await;
    }
}

/// Asserts that `done` contains exactly `count` messages, that each of them is expected and appears
/// once, and that the messages of each key are in ascending order.
fn assert_in_order_and_once(done: &[String], expected: impl Fn(usize) -> bool, count: usize) {
    let mut last: HashMap<usize, usize> = HashMap::new();
    let mut all = Vec::new();
    for id in done {
        let n: usize = id.strip_prefix("m-").unwrap().parse().unwrap();
        assert!(expected(n), "{n}");
        let before = last.insert(n * 7 % KEYS, n);
        assert!(
            before.is_none_or(|before| before < n),
            "{n} after {before:?}"
        );
        all.push(n);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}
