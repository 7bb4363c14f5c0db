//! Messages of one key are handled in the order of their delivery, also when some of them fail.

use std::{
    collections::HashSet,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use idem_runtime::{Consumer, Handled, Message, Tx, consumer::Batches};
use idem_testkit::{broker::Broker, source_ended};
use rand::RngExt;

use crate::fixtures::{Fixture, in_time, message, note};

const KEYS: usize = 7;
const MESSAGES: usize = 210;

fn sent() -> Vec<Message> {
    (0..MESSAGES)
        .map(|n| message(format!("{}:{n}", n % KEYS), &format!("key-{}", n % KEYS)))
        .collect()
}

/// Returns a handler that fails with a probability of 25 %, at most once for each message.
fn failing_now_and_then()
-> impl Fn(Tx, Message) -> std::pin::Pin<Box<dyn Future<Output = Handled> + Send>>
+ Send
+ Sync
+ 'static {
    let failed = Arc::new(Mutex::new(HashSet::new()));
    move |tx, message| {
        let failed = Arc::clone(&failed);
        Box::pin(async move {
            note(&tx, &message).await?;
            let pause = rand::rng().random_range(0..3);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let id = idem_testkit::broker::id(&message);
            let is_to_fail = rand::rng().random_bool(0.25);
            if is_to_fail && failed.lock().unwrap().insert(id) {
                return Err("not this time".into());
            }
            Ok(vec![])
        })
    }
}

async fn assert_order_is_kept(change: impl FnOnce(Consumer<Broker>) -> Consumer<Broker>) {
    let fixture = Fixture::new().await;
    let broker = Broker::with(sent()).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("order", failing_now_and_then())
        .back_off(Duration::from_millis(5), Duration::from_millis(20))
        .concurrency(6)
        .ordered_by_key(true);
    let summary = source_ended(in_time(change(consumer).run(pending())).await);
    assert_eq!(summary.handled, MESSAGES as u64);
    assert!(summary.retried > 0);
    assert_eq!(
        broker.told().retried,
        [],
        "a message was retried by the broker and not in place"
    );

    let done = fixture.done().await;
    assert_eq!(done.len(), MESSAGES);
    for key in 0..KEYS {
        let of_key = |ids: &[String]| -> Vec<String> {
            let prefix = format!("{key}:");
            ids.iter()
                .filter(|id| id.starts_with(&prefix))
                .cloned()
                .collect()
        };
        let expected: Vec<String> = sent().iter().map(idem_testkit::broker::id).collect();
        assert_eq!(of_key(&done), of_key(&expected));
        // A broker with offsets depends on acknowledgements in order.
        assert_eq!(of_key(&broker.told().acknowledged), of_key(&expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_handlers_keep_the_order_of_a_key() {
    assert_order_is_kept(|consumer| consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_batches_keep_the_order_of_a_key() {
    let batches = Batches::new(20).linger(Duration::from_millis(5));
    assert_order_is_kept(|consumer| consumer.batches(batches)).await;
}

#[tokio::test]
async fn poisoned_message_delays_its_own_key_only() {
    // The consumer repeats the attempts of a message with a key itself, without a redelivery. These
    // attempts count against `max_deliveries`, whether the broker counts deliveries or not.
    assert_poisoned_message_delays_its_own_key(Broker::default()).await;
    assert_poisoned_message_delays_its_own_key(Broker::default().counting()).await;
}

async fn assert_poisoned_message_delays_its_own_key(broker: Broker) {
    let fixture = Fixture::new().await;
    let messages = [
        message("poison", "a"),
        message("behind", "a"),
        message("beside", "b"),
        message("without", ""),
    ];
    messages
        .into_iter()
        .for_each(|message| broker.send(message));
    let broker = broker.closed();
    let handler = async |tx: Tx, message: Message| {
        if message.message_id() == Some("poison") {
            return Err("never".into());
        }
        note(&tx, &message).await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("order", handler)
        .back_off(Duration::from_millis(200), Duration::from_millis(200))
        .max_deliveries(3)
        .ordered_by_key(true);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (3, 2, 1)
    );
    let done = fixture.done().await;
    assert_eq!(done.last().map(String::as_str), Some("behind"), "{done:?}");
}
