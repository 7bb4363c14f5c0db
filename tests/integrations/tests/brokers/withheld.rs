//! A message that did not fail uses up no delivery of its RabbitMQ queue, in versions that count
//! every return and in versions that count only failures.

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use idem_brokers::RabbitMq;
use idem_rabbitmq::{RabbitMqConfig, RabbitMqSource, RabbitMqSubscription};
use idem_runtime::{Consumer, HandlerError, Message, Publisher, Settlement, Source, Tx};
use idem_testkit::{Database, in_time, log::Log, until};
use lapin::types::AMQPValue;
use tracing::Level;

use crate::{
    assert_silent,
    counting::{consumers, impatient, waiting},
    held::{kept_at_a_stop, stop_while_handling},
    line::Line,
    next, plain,
    rabbitmq::{declare_with, publisher, shared},
    text,
    unserved::Unserved,
};

async fn declare(url: &str, queue: &str, arguments: &[(&str, AMQPValue)]) {
    let kind = [("x-queue-type", AMQPValue::LongString("quorum".into()))];
    declare_with(url, queue, &[&kind, arguments].concat()).await;
}

/// Declares a quorum queue and publishes this message to it.
async fn queue_of(url: &str, queue: &str, text: &str) {
    declare(url, queue, &[]).await;
    publisher(url).publish(&plain(queue, text)).await.unwrap();
}

fn subscribed(url: &str, subscription: RabbitMqSubscription) -> RabbitMqSource {
    RabbitMqSource::new(RabbitMqConfig::new(url), subscription)
}

fn source(url: &str, queue: &str) -> RabbitMqSource {
    subscribed(url, RabbitMqSubscription::new(queue))
}

/// Returns true for versions before RabbitMQ 4.3, where a quorum queue counts each return.
fn counts_returns() -> bool {
    RabbitMq::version().unwrap() < (4, 3)
}

#[tokio::test(flavor = "multi_thread")]
async fn released_message_is_redelivered_and_not_counted() {
    let url = shared();
    queue_of(&url, "released", "again").await;
    let mut source = source(&url, "released");
    for _ in 0..30 {
        let delivery = next(&mut source).await;
        assert_eq!(delivery.message().deliveries(), Some(1));
        delivery.settle(Settlement::RELEASE).await.unwrap();
    }
    next(&mut source)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();
    assert_silent(&mut source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn released_message_waits_for_its_delay() {
    let url = shared();
    queue_of(&url, "released-later", "later").await;
    let mut source = source(&url, "released-later");
    let (began, after) = (Instant::now(), Duration::from_secs(2));
    next(&mut source)
        .await
        .settle(Settlement::Release { after })
        .await
        .unwrap();
    publisher(&url)
        .publish(&plain("released-later", "other"))
        .await
        .unwrap();
    let other = next(&mut source).await;
    assert_eq!(text(&other), "other");
    other.settle(Settlement::Acknowledge).await.unwrap();

    let later = next(&mut source).await;
    assert_eq!(
        (text(&later), later.message().deliveries()),
        ("later".into(), Some(1))
    );
    assert!(began.elapsed() >= after);
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_after_releases_is_counted_once() {
    let url = shared();
    queue_of(&url, "released-fails", "fails").await;
    let mut source = source(&url, "released-fails");
    for _ in 0..5 {
        next(&mut source)
            .await
            .settle(Settlement::RELEASE)
            .await
            .unwrap();
    }
    next(&mut source)
        .await
        .settle(Settlement::RETRY)
        .await
        .unwrap();
    assert_eq!(next(&mut source).await.message().deliveries(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn withheld_message_returns_when_hold_ends() {
    let url = shared();
    queue_of(&url, "hold-ends", "held").await;
    let mut first = subscribed(
        &url,
        RabbitMqSubscription {
            prefetch: 1,
            hold_s: 1,
            ..RabbitMqSubscription::new("hold-ends")
        },
    );
    let began = Instant::now();
    let after = Duration::from_secs(3600);
    next(&mut first)
        .await
        .settle(Settlement::Release { after })
        .await
        .unwrap();
    // The message has returned to the broker, which counts the return in some versions.
    let again = next(&mut first).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    let counted = if counts_returns() { 2 } else { 1 };
    assert_eq!(again.message().deliveries(), Some(counted));
}

/// The test fetches again only after `hold_s` and the consumer timeout have passed, like a consumer
/// after a long outage of the database. The message was then returned twice.
#[tokio::test(flavor = "multi_thread")]
async fn long_outage_uses_two_deliveries_of_a_withheld_message() {
    let server = impatient(3);
    let url = server.url();
    queue_of(&url, "outage", "held").await;
    let mut source = subscribed(
        &url,
        RabbitMqSubscription {
            hold_s: 1,
            ..RabbitMqSubscription::new("outage")
        },
    );
    let after = Duration::from_secs(3600);
    next(&mut source)
        .await
        .settle(Settlement::Release { after })
        .await
        .unwrap();
    // Wait only if returns are counted. RabbitMQ 4.3 counts neither of the two returns, and keeps a
    // cancelled consumer in its list of consumers.
    if counts_returns() {
        until("the broker has ended the consumer", async || {
            consumers(&url, "outage").await == 0
        })
        .await;
    }

    let counted = if counts_returns() { 3 } else { 1 };
    let again = next(&mut source).await;
    assert_eq!(again.message().deliveries(), Some(counted));
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_hold_returns_a_released_message_at_once() {
    let url = shared();
    queue_of(&url, "no-hold", "returned").await;
    let mut source = subscribed(
        &url,
        RabbitMqSubscription {
            hold_s: 0,
            ..RabbitMqSubscription::new("no-hold")
        },
    );
    next(&mut source)
        .await
        .settle(Settlement::RELEASE)
        .await
        .unwrap();
    let counted = if counts_returns() { 2 } else { 1 };
    assert_eq!(
        next(&mut source).await.message().deliveries(),
        Some(counted)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_source_returns_withheld_messages() {
    let url = shared();
    queue_of(&url, "closed", "returned").await;
    let mut first = source(&url, "closed");
    let after = Duration::from_secs(3600);
    next(&mut first)
        .await
        .settle(Settlement::Release { after })
        .await
        .unwrap();
    assert_eq!(first.close().await.returned, 1);
    let mut second = source(&url, "closed");
    assert_eq!(text(&next(&mut second).await), "returned");
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_source_returns_withheld_messages() {
    let url = shared();
    queue_of(&url, "dropped", "withheld").await;
    publisher(&url)
        .publish(&plain("dropped", "open"))
        .await
        .unwrap();
    let mut first = source(&url, "dropped");
    let after = Duration::from_secs(3600);
    next(&mut first)
        .await
        .settle(Settlement::Release { after })
        .await
        .unwrap();
    let open = next(&mut first).await;
    drop(first);
    let mut second = source(&url, "dropped");
    let withheld = next(&mut second).await;
    assert_eq!(text(&withheld), "withheld");
    withheld.settle(Settlement::Acknowledge).await.unwrap();
    // The dropped source no longer fetches, but its channel is still open. So the message that it
    // delivered before can be released.
    open.settle(Settlement::Release {
        after: Duration::ZERO,
    })
    .await
    .unwrap();
    assert_eq!(text(&next(&mut second).await), "open");
}

/// A classic queue counts no deliveries, so a released message returns to the queue, where other
/// consumers can receive it.
#[tokio::test(flavor = "multi_thread")]
async fn released_message_returns_to_a_classic_queue() {
    let url = shared();
    declare_with(&url, "released-classic", &[]).await;
    publisher(&url)
        .publish(&plain("released-classic", "free"))
        .await
        .unwrap();
    let mut first = source(&url, "released-classic");
    next(&mut first)
        .await
        .settle(Settlement::RETRY)
        .await
        .unwrap();
    next(&mut first)
        .await
        .settle(Settlement::RELEASE)
        .await
        .unwrap();
    let again = next(&mut first).await;
    assert_eq!(again.message().deliveries(), None);
    // The redelivery has shown the source that this queue counts no returns. So the source now
    // returns a released message to the queue, even after its first delivery.
    publisher(&url)
        .publish(&plain("released-classic", "fresh"))
        .await
        .unwrap();
    let fresh = next(&mut first).await;
    assert_eq!(
        (text(&fresh), fresh.message().deliveries()),
        ("fresh".into(), Some(1))
    );
    fresh.settle(Settlement::RELEASE).await.unwrap();
    assert_eq!(next(&mut first).await.message().deliveries(), None);
}

/// I4: while the database fails, the consumer attempts a message more often than `x-delivery-limit`
/// of the queue. The message is still handled in its first delivery.
#[tokio::test(flavor = "multi_thread")]
async fn i4_database_failure_uses_no_rabbitmq_delivery() {
    let url = shared();
    declare(
        &url,
        "environment",
        &[("x-delivery-limit", AMQPValue::LongInt(3))],
    )
    .await;
    publisher(&url)
        .publish(&plain("environment", "kept"))
        .await
        .unwrap();
    let unserved = Unserved::start(source(&url, "environment"), "environment").await;
    unserved.attempted(6).await;
    let client = unserved.db.client().await;
    client
        .batch_execute("CREATE TABLE done (text text)")
        .await
        .unwrap();
    until("the message is handled", async || {
        let rows = client.query("SELECT text FROM done", &[]).await.unwrap();
        rows.iter().any(|row| row.get::<_, &str>(0) == "Some(1)")
    })
    .await;
    let summary = unserved.stop().await;
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 0, 0)
    );
}

/// When the consumer stops during a failure of the environment, the message returns to its queue
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_returns_a_withheld_message_once() {
    let url = shared();
    queue_of(&url, "shutdown", "returned").await;
    let unserved = Unserved::start(source(&url, "shutdown"), "shutdown").await;
    unserved.attempted(3).await;
    let summary = unserved.stop().await;
    assert_eq!(
        (
            summary.handled,
            summary.rejected,
            summary.failed_settlements
        ),
        (0, 0, 0)
    );

    let counted = if counts_returns() { 2 } else { 1 };
    let returned = next(&mut source(&url, "shutdown")).await;
    assert_eq!(
        (text(&returned), returned.message().deliveries()),
        ("returned".into(), Some(counted))
    );
}

/// I4: a warning is logged before RabbitMQ 4 deletes the message at its default limit, so that an
/// operator has time to act.
#[tokio::test]
async fn delivery_near_the_default_limit_is_logged() {
    let url = shared();
    queue_of(&url, "near-limit", "poison").await;
    let (log, _guard) = Log::keep();
    let warnings = || log.lines(Level::WARN, "delivery limit");
    let mut source = source(&url, "near-limit");
    for _ in 0..15 {
        next(&mut source)
            .await
            .settle(Settlement::RETRY)
            .await
            .unwrap();
        assert_eq!(warnings(), Vec::<String>::new());
    }
    next(&mut source)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();
    let [warning] = &warnings()[..] else {
        panic!("not one warning: {:?}", warnings());
    };
    assert!(warning.contains("near-limit"), "{warning}");
}

/// I4: with the default settings of the consumer, a message becomes a dead letter before its
/// failures reach the default limit of RabbitMQ 4.
#[tokio::test(flavor = "multi_thread")]
async fn i4_failing_message_becomes_dead_letter_before_limit() {
    let url = shared();
    queue_of(&url, "always-fails", "poison").await;
    let db = Database::create();
    let client = db.client().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = move |_: Tx, message: Message| {
        noted.lock().unwrap().push(message.deliveries());
        async { Err("it never succeeds".into()) }
    };
    let consumer = Consumer::new(db.pool(4), source(&url, "always-fails"))
        .back_off(Duration::from_millis(1), Duration::from_millis(2))
        .handle("always-fails", handler);
    let running = tokio::spawn(consumer.run(pending()));
    until("the message is a dead letter", async || {
        let sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = 'always-fails'";
        client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    running.abort();
    let expected: Vec<Option<u32>> = (1..=10).map(Some).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

/// Receives the message of a queue `deliveries` times, and settles it with `returned` each time.
/// Each delivery uses a new connection.
async fn return_often(url: &str, queue: &str, deliveries: u32, returned: &Settlement) {
    for _ in 0..deliveries {
        let mut source = source(url, queue);
        let delivery = next(&mut source).await;
        source.close().await;
        let settled = delivery.settle(returned.clone()).await;
        // A release near the limit returns an error. The message then returns to the queue when the
        // connection ends.
        assert!(
            settled.is_ok() || *returned == Settlement::RELEASE,
            "{settled:?}"
        );
    }
}

/// Settles a message with `returned`, `deliveries` times. Then returns the number of attempts of a
/// consumer with a handler that always fails.
async fn attempts_after(deliveries: u32, queue: &'static str, returned: Settlement) -> usize {
    let url = shared();
    queue_of(&url, queue, "poison").await;
    return_often(&url, queue, deliveries, &returned).await;
    let db = Database::create();
    let client = db.client().await;
    let attempts = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&attempts);
    let handler = move |_: Tx, _: Message| {
        *counted.lock().unwrap() += 1;
        async { Err(HandlerError::from("it never succeeds")) }
    };
    let consumer = Consumer::new(db.pool(4), source(&url, queue))
        .back_off(Duration::from_millis(1), Duration::from_millis(2))
        .max_deliveries(3)
        .handle(queue, handler);
    let running = tokio::spawn(consumer.run(pending()));
    until("the message is a dead letter", async || {
        let sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = $1";
        client
            .query_one(sql, &[&queue])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 1
    })
    .await;
    running.abort();
    *attempts.lock().unwrap()
}

/// A message that was released five times in the past still has all three attempts.
#[tokio::test(flavor = "multi_thread")]
async fn clean_restarts_use_no_delivery() {
    assert_eq!(attempts_after(5, "restarted", Settlement::RELEASE).await, 3);
}

/// I4: near the limit of a queue that counts returns, one more return could delete the message, so
/// the next failure makes a dead letter. Earlier returns may have been failures in other processes.
#[tokio::test(flavor = "multi_thread")]
async fn i4_failure_near_the_limit_becomes_dead_letter() {
    let expected = if counts_returns() { 1 } else { 3 };
    assert_eq!(
        attempts_after(16, "near-the-limit", Settlement::RELEASE).await,
        expected
    );
}

/// I4: an attempt with an unavailable API is not counted. If the queue counts returns, the message
/// waits for `hold_s` and then becomes a dead letter. Otherwise it continues to wait.
#[tokio::test(flavor = "multi_thread")]
async fn i4_message_near_limit_waits_for_api_within_its_hold() {
    let (url, queue) = (shared(), "near-and-down");
    queue_of(&url, queue, "poison").await;
    return_often(&url, queue, 16, &Settlement::RETRY).await;
    let db = Database::create();
    let client = db.client().await;
    let attempts = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&attempts);
    let handler = move |_: Tx, _: Message| {
        *counted.lock().unwrap() += 1;
        async { Err(HandlerError::unavailable("its API is down")) }
    };
    let source = subscribed(
        &url,
        RabbitMqSubscription {
            hold_s: 10,
            ..RabbitMqSubscription::new(queue)
        },
    );
    let running = tokio::spawn(
        Consumer::new(db.pool(4), source)
            .handle(queue, handler)
            .run(pending()),
    );
    let letters = async || -> i64 {
        let sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = $1";
        client.query_one(sql, &[&queue]).await.unwrap().get(0)
    };
    let is_kept = async || letters().await == 1;
    until("the message is a dead letter or has waited", async || {
        is_kept().await || !counts_returns() && *attempts.lock().unwrap() > 6
    })
    .await;
    running.abort();
    assert_eq!(is_kept().await, counts_returns());
    let attempts = *attempts.lock().unwrap();
    assert!(
        attempts >= 2,
        "the message did not wait: {attempts} attempts"
    );
}

/// Closing a source returns its prefetched messages. RabbitMQ before 4.3 counts each return.
#[tokio::test(flavor = "multi_thread")]
async fn closed_source_returns_prefetched_messages() {
    let url = shared();
    queue_of(&url, "sent-ahead", "handled").await;
    publisher(&url)
        .publish(&plain("sent-ahead", "ahead"))
        .await
        .unwrap();
    let mut first = source(&url, "sent-ahead");
    next(&mut first)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();
    until("both messages are sent", async || {
        waiting(&url, "sent-ahead").await == 0
    })
    .await;
    assert_eq!(first.close().await.returned, 1);
    let mut second = source(&url, "sent-ahead");
    let ahead = next(&mut second).await;
    let counted = if counts_returns() { 2 } else { 1 };
    assert_eq!(
        (text(&ahead), ahead.message().deliveries()),
        ("ahead".into(), Some(counted))
    );
}

/// Declares a quorum queue with one message. At the next return of the message, the queue deletes
/// it.
async fn queue_at_its_limit(url: &str, queue: &str, text: &str) {
    declare(url, queue, &[("x-delivery-limit", AMQPValue::LongInt(15))]).await;
    publisher(url).publish(&plain(queue, text)).await.unwrap();
    return_often(url, queue, 15, &Settlement::RETRY).await;
}

/// I4: a return would delete a message at its delivery limit. So when its hold ends, the source
/// yields the message again and does not return it.
#[tokio::test(flavor = "multi_thread")]
async fn i4_message_at_its_limit_is_not_returned_after_its_hold() {
    let (url, queue) = (shared(), "hold-ends-at-limit");
    queue_at_its_limit(&url, queue, "kept").await;
    let mut source = subscribed(
        &url,
        RabbitMqSubscription {
            prefetch: 1,
            hold_s: 1,
            ..RabbitMqSubscription::new(queue)
        },
    );
    let after = Duration::from_secs(2);
    next(&mut source)
        .await
        .settle(Settlement::Release { after })
        .await
        .unwrap();
    publisher(&url)
        .publish(&plain(queue, "behind"))
        .await
        .unwrap();
    for expected in ["kept", "behind"] {
        let delivery = in_time(next(&mut source)).await;
        assert_eq!(text(&delivery), expected);
        delivery.settle(Settlement::Acknowledge).await.unwrap();
    }
}

/// I4: when a message at its delivery limit is dropped without a settlement, the source yields it
/// again, because a return would delete the message.
#[tokio::test(flavor = "multi_thread")]
async fn i4_dropped_message_at_its_limit_is_yielded_again() {
    let (url, queue) = (shared(), "dropped-at-limit");
    queue_at_its_limit(&url, queue, "kept").await;
    let mut source = subscribed(
        &url,
        RabbitMqSubscription {
            prefetch: 1,
            ..RabbitMqSubscription::new(queue)
        },
    );
    drop(next(&mut source).await);
    publisher(&url)
        .publish(&plain(queue, "behind"))
        .await
        .unwrap();
    for expected in ["kept", "behind"] {
        let delivery = in_time(next(&mut source)).await;
        assert_eq!(text(&delivery), expected);
        delivery.settle(Settlement::Acknowledge).await.unwrap();
    }
}

/// The state of a message at its delivery limit when its connection is cut.
#[derive(Clone, Copy, Debug)]
enum At {
    Withheld,
    InHand,
    Dropped,
}

/// I4: after a disconnect, the source yields a message at its delivery limit again, because the
/// queue counts the disconnect as a return and deletes the message.
#[tokio::test(flavor = "multi_thread")]
async fn i4_message_at_its_limit_survives_a_disconnect() {
    let release = Settlement::Release {
        after: Duration::ZERO,
    };
    for (at, queue) in [
        (At::Withheld, "cut-withheld"),
        (At::InHand, "cut-in-hand"),
        (At::Dropped, "cut-dropped"),
    ] {
        let url = shared();
        queue_at_its_limit(&url, queue, "kept").await;
        let line = Line::to(&url).await;
        let mut source = subscribed(&line.url, RabbitMqSubscription::new(queue));
        let delivery = next(&mut source).await;
        let in_hand = match at {
            At::Withheld => {
                delivery.settle(release.clone()).await.unwrap();
                None
            }
            At::InHand | At::Dropped => Some(delivery),
        };
        line.cut();
        until("the broker has lost the source", async || {
            consumers(&url, queue).await == 0
        })
        .await;
        assert_eq!(
            waiting(&url, queue).await,
            0,
            "{at:?}: the queue did not delete the message"
        );
        match (at, in_hand) {
            (At::InHand, Some(delivery)) => delivery.settle(release.clone()).await.unwrap(),
            (_, in_hand) => drop(in_hand),
        }
        line.mend();
        let again = in_time(next(&mut source)).await;
        assert_eq!(text(&again), "kept", "{at:?}");
    }
}

/// Publishes two messages and settles each with a retry `deliveries` times.
async fn two_returned_often(url: &str, queue: &str, deliveries: u32) {
    for text in ["message-1", "message-2"] {
        publisher(url).publish(&plain(queue, text)).await.unwrap();
    }
    for _ in 0..deliveries {
        let mut source = source(url, queue);
        let deliveries = [next(&mut source).await, next(&mut source).await];
        source.close().await;
        for delivery in deliveries {
            delivery.settle(Settlement::RETRY).await.unwrap();
        }
    }
}

/// I4: a prefetched message at its delivery limit survives a disconnect. The consumer has not taken
/// this message from the source.
#[tokio::test(flavor = "multi_thread")]
async fn i4_prefetched_message_at_limit_survives_a_disconnect() {
    for (is_closed, queue) in [(false, "cut-sent-ahead"), (true, "cut-and-closed")] {
        let url = shared();
        declare(&url, queue, &[("x-delivery-limit", AMQPValue::LongInt(15))]).await;
        two_returned_often(&url, queue, 15).await;
        let line = Line::to(&url).await;
        let mut source = subscribed(&line.url, RabbitMqSubscription::new(queue));
        let first = next(&mut source).await;
        until("both messages are sent", async || {
            line.has_passed("message-1") && line.has_passed("message-2")
        })
        .await;
        line.cut();
        until("the broker has lost the source", async || {
            consumers(&url, queue).await == 0
        })
        .await;
        assert_eq!(
            waiting(&url, queue).await,
            0,
            "the queue did not delete them"
        );
        let second = if is_closed {
            source.close().await.near_limit.remove(0)
        } else {
            line.mend();
            in_time(next(&mut source)).await
        };
        assert_ne!(text(&second), text(&first));
    }
}

/// The method `basic.consume-ok` of AMQP, the response to the start of a consumer.
const CONSUME_OK: &[u8] = &[0, 60, 0, 21];

/// I4: the broker has sent a message, and the caller drops the future of `next` before the source
/// receives `consume-ok`. The source must keep the connection open, because the queue would delete
/// the message if the connection ended.
#[tokio::test(flavor = "multi_thread")]
async fn i4_message_at_its_limit_survives_a_dropped_next() {
    for (is_closed, queue) in [(false, "dropped-attempt"), (true, "closed-attempt")] {
        let url = shared();
        queue_at_its_limit(&url, queue, "kept").await;
        let line = Line::to(&url).await;
        line.hold_back(CONSUME_OK);
        let config = RabbitMqConfig {
            timeout_s: 60,
            ..RabbitMqConfig::new(&line.url)
        };
        let mut source = RabbitMqSource::new(config, RabbitMqSubscription::new(queue));
        tokio::select! {
            _ = next(&mut source) => panic!("`next` returned without the held back response"),
            () = until("the message is sent", async || {
                consumers(&url, queue).await == 1 && waiting(&url, queue).await == 0
            }) => {}
        }
        line.release();
        let kept = if is_closed {
            source
                .close()
                .await
                .near_limit
                .pop()
                .expect("the queue has deleted the message")
        } else {
            in_time(next(&mut source)).await
        };
        assert_eq!(text(&kept), "kept");
    }
}

/// The method `basic.qos-ok` of AMQP, the last response before a source starts to consume.
const QOS_OK: &[u8] = &[0, 60, 0, 11];

/// A source that is closed while it connects must not start to consume. Otherwise, the queue would
/// send messages to a connection that ends, and would count these deliveries.
#[tokio::test(flavor = "multi_thread")]
async fn source_closed_while_connecting_consumes_nothing() {
    let (url, queue) = (shared(), "closed-while-connecting");
    queue_of(&url, queue, "waiting").await;
    let line = Line::to(&url).await;
    line.hold_back(QOS_OK);
    let mut connecting = source(&line.url, queue);
    tokio::select! {
        _ = next(&mut connecting) => panic!("`next` returned without the held back response"),
        () = until("the response is held back", async || line.held_back() == 1) => {}
    }
    connecting.close().await;
    line.release();
    until("the connection has ended", async || line.connections() == 0).await;
    assert_eq!(
        next(&mut source(&url, queue)).await.message().deliveries(),
        Some(1)
    );
}

/// I4: at a stop, a prefetched message near its delivery limit becomes a dead letter. If the
/// message were returned instead, a queue of RabbitMQ 4 could delete it.
#[tokio::test(flavor = "multi_thread")]
async fn i4_stop_keeps_prefetched_message_near_the_limit() {
    let (url, queue) = (shared(), "near-and-ahead");
    declare(&url, queue, &[]).await;
    two_returned_often(&url, queue, 16).await;
    let db = Database::create();
    let sent = until("both messages are sent", async || {
        waiting(&url, queue).await == 0
    });
    let summary = stop_while_handling(source(&url, queue), queue, &db, sent).await;
    assert_eq!(
        (summary.handled, summary.rejected, summary.returned),
        (1, 1, 0)
    );
    assert_eq!(kept_at_a_stop(&db, queue).await.len(), 1);
    assert_eq!(waiting(&url, queue).await, 0);
}
