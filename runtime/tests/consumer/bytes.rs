//! Tests of two limits in bytes: for the messages that a consumer holds, and for the messages of
//! one batch.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use idem_runtime::{Consumer, Error, HandlerError, Message, Tx, consumer::Batches};
use idem_testkit::{broker::Broker, source_ended};
use tokio::time::{sleep, timeout};

use crate::fixtures::{Fixture, in_time, note, noting, until};

const MIB: usize = 1024 * 1024;

/// Batches of up to 100 messages, without a time limit. The tests add a limit in bytes.
const UNLIMITED: Batches = Batches::new(100).linger(Duration::MAX);

fn sized(id: impl Into<String>, bytes: usize) -> Message {
    Message::new("tests", vec![b'x'; bytes]).with_message_id(id)
}

/// Returns the number of messages that each transaction has handled.
async fn rows_by_transaction(fixture: &Fixture) -> Vec<i64> {
    let client = fixture.pool.get().await.unwrap();
    let sql = "SELECT count(*) FROM done GROUP BY tx ORDER BY min(place)";
    let rows = client.query_typed(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// A consumer holds at most 64 MiB of messages, so its memory is limited for messages of any size.
/// The next message waits.
#[tokio::test(flavor = "multi_thread")]
async fn held_messages_stay_within_64_mib_by_default() {
    let fixture = Fixture::new().await;
    let broker = Broker::with((0..100).map(|n| sized(format!("m-{n}"), MIB))).closed();
    let seen = broker.clone();
    let handler = move |tx: Tx, message: Message| {
        let seen = seen.clone();
        async move {
            // Settle no message before the consumer holds the maximum: 64 messages of 1 MiB, and
            // one message that waits.
            while seen.told().most_unsettled < 65 {
                sleep(Duration::from_millis(5)).await;
            }
            note(&tx, &message).await?;
            Ok(vec![])
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", handler)
        .concurrency(200);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(summary.handled, 100);
    let most = broker.told().most_unsettled;
    assert!(most <= 65, "the consumer held {most} messages of 1 MiB");
}

/// A message that is larger than the limit is handled while no other message is handled.
#[tokio::test(flavor = "multi_thread")]
async fn message_above_the_limit_is_handled_alone() {
    let fixture = Fixture::new().await;
    let small = (0..8).map(|n| sized(format!("small-{n}"), 100));
    let broker = Broker::with([sized("large", 5_000)].into_iter().chain(small)).closed();
    let (seen, held_beside) = (broker.clone(), Arc::new(AtomicUsize::new(0)));
    let noted = Arc::clone(&held_beside);
    let handler = move |tx: Tx, message: Message| {
        let (seen, noted) = (seen.clone(), Arc::clone(&noted));
        async move {
            if message.message_id() == Some("large") {
                // A second message is fetched and waits. A third message must not be fetched.
                while seen.told().most_unsettled < 2 {
                    sleep(Duration::from_millis(5)).await;
                }
                let third = async {
                    while seen.told().most_unsettled < 3 {
                        sleep(Duration::from_millis(5)).await;
                    }
                };
                let _ = timeout(Duration::from_millis(300), third).await;
                noted.store(seen.told().most_unsettled - 1, SeqCst);
            }
            note(&tx, &message).await?;
            Ok(vec![])
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", handler)
        .max_bytes(1_000);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    let held_beside = held_beside.load(SeqCst);
    assert_eq!(summary.handled, 9);
    assert_eq!(
        held_beside, 1,
        "not exactly one message was fetched beyond the limit"
    );
}

/// A batch is handled when the next message would exceed its limit in bytes.
#[tokio::test(flavor = "multi_thread")]
async fn batch_ends_before_it_exceeds_its_byte_limit() {
    let fixture = Fixture::new().await;
    let broker = Broker::with((0..10).map(|n| sized(format!("m-{n}"), 300)));
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", noting())
        .batches(UNLIMITED)
        .max_batch_bytes(1_000)
        .concurrency(1);
    let done = until("three batches are handled", async || {
        broker.told().acknowledged.len() == 9
    });
    let summary = in_time(consumer.run(done)).await.unwrap();
    assert_eq!(rows_by_transaction(&fixture).await, [3, 3, 3, 1]);
    assert_eq!(summary.handled, 10);
}

/// A batch that uses all bytes of the consumer is handled without waiting for more messages. Such a
/// wait would never end.
#[tokio::test(flavor = "multi_thread")]
async fn batch_does_not_wait_for_bytes_that_it_uses_itself() {
    let fixture = Fixture::new().await;
    let broker = Broker::with((0..10).map(|n| sized(format!("m-{n}"), 300)));
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", noting())
        .batches(UNLIMITED)
        .max_bytes(1_000)
        .max_batch_bytes(1_000_000)
        .concurrency(4);
    let done = until("nearly all messages are handled", async || {
        broker.told().acknowledged.len() >= 9
    });
    let summary = in_time(consumer.run(done)).await.unwrap();
    assert!(summary.handled >= 9, "{summary:?}");
    let most = broker.told().most_unsettled;
    assert!(most <= 4, "the consumer held {most} messages of 300 bytes");
}

/// A message that waits in the consumer for its next attempt still counts against the limit in
/// bytes. A message of another key must be handled meanwhile, because its success shows that the
/// API is available and that only the first message fails.
#[tokio::test(flavor = "multi_thread")]
async fn message_retried_in_place_does_not_block_another_key() {
    let fixture = Fixture::new().await;
    let first = sized("first", 5_000).with_key("a");
    let second = sized("second", 5_000).with_key("b");
    let broker = Broker::with([first, second]).closed();
    let handler = async |tx: Tx, message: Message| {
        if message.message_id() == Some("first") {
            return Err(HandlerError::unavailable("its API is down"));
        }
        note(&tx, &message).await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", handler)
        .ordered_by_key(true)
        .max_bytes(1_000);
    let done = until("the second message is handled", async || {
        broker.told().acknowledged == ["second"]
    });
    in_time(consumer.run(done)).await.unwrap();
    assert_eq!(fixture.done().await, ["second"]);
}

/// The first message waits in the consumer for its next attempt, and a later message of its key
/// waits for the first. A message of another key is handled meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_successor_does_not_block_another_key() {
    let fixture = Fixture::new().await;
    let messages = [("first", "a"), ("successor", "a"), ("second", "b")];
    let broker = Broker::with(messages.map(|(id, key)| sized(id, 5_000).with_key(key)));
    let handler = async |tx: Tx, message: Message| {
        if message.key() == Some("a") {
            return Err(HandlerError::unavailable("its API is down"));
        }
        note(&tx, &message).await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", handler)
        .ordered_by_key(true)
        .max_bytes(1_000);
    let done = until("the second message is handled", async || {
        broker.told().acknowledged == ["second"]
    });
    in_time(consumer.run(done)).await.unwrap();
    assert_eq!(fixture.done().await, ["second"]);
}

/// Messages without a key are handled at once, while a failed message waits in the consumer for its
/// next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn message_retried_in_place_does_not_block_keyless_messages() {
    let fixture = Fixture::new().await;
    let singles = ["1", "2", "3"].map(|id| sized(id, 5_000));
    let broker = Broker::with(
        [sized("first", 5_000).with_key("a")]
            .into_iter()
            .chain(singles),
    );
    let seen = broker.clone();
    let handler = move |tx: Tx, message: Message| {
        let seen = seen.clone();
        async move {
            match message.message_id() {
                Some("first") => return Err("not today".into()),
                // Keep this message unsettled until the next message is fetched.
                Some("1") => {
                    while seen.unsettled() < 3 {
                        sleep(Duration::from_millis(5)).await;
                    }
                }
                _ => {}
            }
            note(&tx, &message).await?;
            Ok(vec![])
        }
    };
    let hour = Duration::from_secs(3600);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", handler)
        .back_off(hour, hour)
        .ordered_by_key(true)
        .max_bytes(1_000);
    let done = until("the other messages are handled", async || {
        broker.told().acknowledged.len() == 3
    });
    in_time(consumer.run(done)).await.unwrap();
    assert_eq!(fixture.done().await, ["1", "2", "3"]);
}

/// The byte limit does not change the order of the messages of a key.
#[tokio::test(flavor = "multi_thread")]
async fn byte_limit_keeps_the_order_of_a_key() {
    let fixture = Fixture::new().await;
    let sizes = [900, 10, 600, 2_000, 10, 10, 500, 10];
    let messages = sizes
        .iter()
        .enumerate()
        .map(|(n, bytes)| sized(format!("{n}"), *bytes).with_key("k"));
    let broker = Broker::with(messages).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", noting())
        .ordered_by_key(true)
        .max_bytes(1_000);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(summary.handled, 8);
    assert_eq!(
        fixture.done().await,
        ["0", "1", "2", "3", "4", "5", "6", "7"]
    );
}

/// A fetched message that waits for bytes is released at a stop.
#[tokio::test(flavor = "multi_thread")]
async fn message_waiting_for_bytes_is_released_at_a_stop() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([sized("first", 800), sized("second", 800)]);
    let handler = async |_: Tx, _: Message| pending().await;
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("bytes", handler)
        .max_bytes(1_000)
        .grace(Duration::ZERO);
    let both_are_held = until("both messages are held", async || broker.unsettled() == 2);
    let summary = in_time(consumer.run(both_are_held)).await.unwrap();
    assert_eq!((summary.given_back, broker.unsettled()), (2, 0));
    assert_eq!(broker.told().dropped, Vec::<String>::new());
}

#[tokio::test]
async fn zero_byte_limit_is_an_error() {
    let fixture = Fixture::new().await;
    for zero in [
        |consumer: Consumer<Broker>| consumer.max_bytes(0),
        |consumer: Consumer<Broker>| consumer.max_batch_bytes(0),
    ] {
        let consumer =
            Consumer::new(fixture.pool.clone(), Broker::default()).handle("bytes", noting());
        let ended = zero(consumer).run(pending()).await;
        assert!(matches!(ended, Err(Error::Invalid(_))), "{ended:?}");
    }
}
