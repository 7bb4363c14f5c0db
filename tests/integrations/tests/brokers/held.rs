//! Tests of messages that a NATS source holds: a waiting message is not redelivered, a prefetched
//! message is returned at once when the source ends, and no message is lost at the delivery limit
//! (`max_deliver`) of its durable consumer.

use std::{
    collections::HashSet,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, Info, pull},
};
use futures_util::StreamExt;
use idem_nats::{NatsConfig, NatsSource, NatsSubscription};
use idem_runtime::{
    Consumer, Delivery, HandlerError, Message, Publisher, Settlement, Source, Tx, consumer::Summary,
};
use idem_testkit::{Database, in_time, log::Log, until};
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, oneshot, watch},
};
use tracing::Level;

use crate::{
    assert_silent,
    line::Line,
    nats::{declare, publisher, shared, unsettled},
    next, plain, text,
    unserved::Unserved,
};

/// The number of `ack_wait` periods that a test waits. In this time, the server would redeliver a
/// message that the source does not hold.
const SEVERAL_ACK_WAITS: u32 = 4;

/// Creates a stream with these messages.
async fn stream_of(url: &str, stream: &str, texts: &[&str]) {
    declare(url, stream, |_| {}).await;
    for text in texts {
        publisher(url)
            .publish(&plain(&format!("{stream}.x"), text))
            .await
            .unwrap();
    }
}

/// Creates the durable consumer `worker` in advance, as an administrator does.
async fn make_consumer(url: &str, stream: &str, change: impl FnOnce(&mut pull::Config)) {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let mut config = pull::Config {
        durable_name: Some("worker".into()),
        ack_policy: AckPolicy::Explicit,
        ..pull::Config::default()
    };
    change(&mut config);
    let stream = context.get_stream(stream).await.unwrap();
    stream.create_consumer(config).await.unwrap();
}

fn subscription(stream: &str) -> NatsSubscription {
    NatsSubscription {
        prefetch: 10,
        ..NatsSubscription::new(stream, "worker")
    }
}

fn source(url: &str, stream: &str, ack_wait_s: u32) -> NatsSource {
    NatsSource::new(
        NatsConfig::new(url),
        NatsSubscription {
            ack_wait_s,
            ..subscription(stream)
        },
    )
}

async fn info(url: &str, stream: &str) -> Info {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let stream = context.get_stream(stream).await.unwrap();
    stream.consumer_info("worker").await.unwrap()
}

/// Waits until `messages` messages are delivered and not settled.
async fn delivered(url: &str, stream: &str, messages: usize) {
    until("the server has delivered all messages", async || {
        info(url, stream).await.num_ack_pending == messages
    })
    .await;
}

/// Asserts for several `ack_wait` periods that the server redelivers nothing.
async fn assert_not_redelivered(url: &str, stream: &str, ack_wait: Duration) {
    let began = Instant::now();
    while began.elapsed() < SEVERAL_ACK_WAITS * ack_wait {
        let redelivered = info(url, stream).await.num_redelivered;
        assert_eq!(redelivered, 0, "{stream} after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn acknowledge_first_deliveries(deliveries: impl IntoIterator<Item = Delivery>) {
    for delivery in deliveries {
        assert_eq!(
            delivery.message().deliveries(),
            Some(1),
            "{}",
            text(&delivery)
        );
        delivery.settle(Settlement::Acknowledge).await.unwrap();
    }
}

// Tests of messages that wait

/// A message is not redelivered while its handler runs longer than `ack_wait`.
#[tokio::test(flavor = "multi_thread")]
async fn message_held_beyond_ack_wait_is_delivered_once() {
    let url = shared();
    stream_of(&url, "long-handler", &["held"]).await;
    let mut source = source(&url, "long-handler", 4);
    let held = next(&mut source).await;
    assert_not_redelivered(&url, "long-handler", Duration::from_secs(4)).await;
    acknowledge_first_deliveries([held]).await;
    assert_silent(&mut source).await;
    assert_eq!(unsettled(&url, "long-handler").await, 0);
}

/// A prefetched message is not redelivered when a paused consumer takes it from the source only
/// after more than `ack_wait`.
#[tokio::test(flavor = "multi_thread")]
async fn message_prefetched_beyond_ack_wait_is_delivered_once() {
    let url = shared();
    stream_of(&url, "paused", &["1", "2", "3", "4"]).await;
    let mut source = source(&url, "paused", 4);
    let first = next(&mut source).await;
    delivered(&url, "paused", 4).await;
    assert_not_redelivered(&url, "paused", Duration::from_secs(4)).await;
    acknowledge_first_deliveries([first]).await;
    for _ in 0..3 {
        acknowledge_first_deliveries([next(&mut source).await]).await;
    }
    assert_eq!(unsettled(&url, "paused").await, 0);
}

/// If the durable consumer already exists, its settings apply instead of the settings of the
/// source.
#[tokio::test(flavor = "multi_thread")]
async fn ack_wait_of_an_existing_consumer_applies() {
    let url = shared();
    stream_of(&url, "made-before", &["1", "2"]).await;
    let ack_wait = Duration::from_millis(1500);
    make_consumer(&url, "made-before", |config| config.ack_wait = ack_wait).await;
    let mut source = source(&url, "made-before", 30);
    let first = next(&mut source).await;
    delivered(&url, "made-before", 2).await;
    assert_not_redelivered(&url, "made-before", ack_wait).await;
    acknowledge_first_deliveries([first, next(&mut source).await]).await;
}

/// The `backoff` list of a durable consumer replaces `ack_wait`. It sets a separate time for each
/// delivery.
#[tokio::test(flavor = "multi_thread")]
async fn backoff_of_an_existing_consumer_applies() {
    let url = shared();
    stream_of(&url, "backoff", &["1"]).await;
    // A third of the first time is longer than the second time, so a source that renews all
    // deliveries by the first time would be too late for the second delivery.
    make_consumer(&url, "backoff", |config| {
        config.backoff = [8000, 2000, 8000].map(Duration::from_millis).into();
        config.max_deliver = 10;
    })
    .await;
    let mut source = source(&url, "backoff", 30);
    next(&mut source)
        .await
        .settle(Settlement::RETRY)
        .await
        .unwrap();
    let second = next(&mut source).await;
    let began = Instant::now();
    while began.elapsed() < SEVERAL_ACK_WAITS * Duration::from_secs(2) {
        assert_silent(&mut source).await;
    }
    assert_eq!(second.message().deliveries(), Some(2));
    second.settle(Settlement::Acknowledge).await.unwrap();
    assert_eq!(unsettled(&url, "backoff").await, 0);
}

/// A message that was settled with a retry is redelivered after its retry delay, and not only after
/// `ack_wait`.
#[tokio::test(flavor = "multi_thread")]
async fn failed_message_is_not_held() {
    let url = shared();
    stream_of(&url, "not-held", &["again"]).await;
    let mut source = source(&url, "not-held", 30);
    let first = next(&mut source).await;
    let began = Instant::now();
    let after = Duration::from_millis(500);
    first.settle(Settlement::Retry { after }).await.unwrap();
    let again = next(&mut source).await;
    assert!(began.elapsed() >= after);
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "it was redelivered after {:?}",
        began.elapsed()
    );
    again.settle(Settlement::Acknowledge).await.unwrap();
}

// Tests of the end of a source

/// An `ack_wait` that is longer than any test. If a message is redelivered during a test, its
/// source has therefore returned it.
const LONG_ACK_WAIT_S: u32 = 600;

/// Asserts that each of these messages arrives once, and acknowledges it. The delivery count can be
/// 1 or 2, because the server does not always count a return.
async fn assert_each_arrives_once(source: &mut NatsSource, texts: &[&str]) {
    let mut wanted: HashSet<_> = texts.iter().map(|&text| text.to_owned()).collect();
    while !wanted.is_empty() {
        let delivery = next(source).await;
        assert!(
            wanted.remove(&text(&delivery)),
            "{} was delivered twice",
            text(&delivery)
        );
        assert!(delivery.message().deliveries() <= Some(2), "{delivery:?}");
        delivery.settle(Settlement::Acknowledge).await.unwrap();
    }
    assert_silent(source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_source_returns_its_prefetched_messages() {
    let url = shared();
    stream_of(&url, "closed", &["handled", "1", "2", "3"]).await;
    let mut first = source(&url, "closed", LONG_ACK_WAIT_S);
    next(&mut first)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();
    delivered(&url, "closed", 3).await;
    first.close().await;
    let mut second = source(&url, "closed", LONG_ACK_WAIT_S);
    assert_each_arrives_once(&mut second, &["1", "2", "3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_source_returns_its_prefetched_messages() {
    let url = shared();
    stream_of(&url, "dropped", &["handled", "1", "2", "3"]).await;
    let mut first = source(&url, "dropped", LONG_ACK_WAIT_S);
    next(&mut first)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();
    delivered(&url, "dropped", 3).await;
    drop(first);
    let mut second = source(&url, "dropped", LONG_ACK_WAIT_S);
    assert_each_arrives_once(&mut second, &["1", "2", "3"]).await;
}

/// The task that fetches messages ends when its source is dropped, and returns the messages that it
/// has fetched.
#[test]
fn source_dropped_outside_its_runtime_returns_its_messages() {
    let runtime = Runtime::new().unwrap();
    let (url, first) = runtime.block_on(async {
        let url = shared();
        stream_of(&url, "outside", &["handled", "1", "2", "3"]).await;
        let mut first = source(&url, "outside", LONG_ACK_WAIT_S);
        next(&mut first)
            .await
            .settle(Settlement::Acknowledge)
            .await
            .unwrap();
        delivered(&url, "outside", 3).await;
        (url, first)
    });
    drop(first);
    runtime.block_on(async {
        let mut second = source(&url, "outside", LONG_ACK_WAIT_S);
        assert_each_arrives_once(&mut second, &["1", "2", "3"]).await;
        second.close().await;
        // The first source would receive this message if its task were still fetching.
        publisher(&url)
            .publish(&plain("outside.x", "4"))
            .await
            .unwrap();
        let mut third = source(&url, "outside", LONG_ACK_WAIT_S);
        assert_each_arrives_once(&mut third, &["4"]).await;
    });
}

/// A message that is published after the first source was closed reaches the second source,
/// although the request of the first source for messages is still open at the server.
#[tokio::test(flavor = "multi_thread")]
async fn message_published_after_close_reaches_another_source() {
    let url = shared();
    stream_of(&url, "open-request", &["handled"]).await;
    let mut first = source(&url, "open-request", LONG_ACK_WAIT_S);
    next(&mut first)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();
    first.close().await;
    publisher(&url)
        .publish(&plain("open-request.x", "new"))
        .await
        .unwrap();
    let mut second = source(&url, "open-request", LONG_ACK_WAIT_S);
    let delivery = next(&mut second).await;
    assert_eq!(
        (text(&delivery), delivery.message().deliveries()),
        ("new".into(), Some(1))
    );
}

/// A message that the consumer still handles is not redelivered after its source is closed and
/// dropped.
#[tokio::test(flavor = "multi_thread")]
async fn message_of_a_closed_source_is_held_until_settled() {
    let url = shared();
    stream_of(&url, "outlives", &["held"]).await;
    let mut first = source(&url, "outlives", 2);
    let held = next(&mut first).await;
    first.close().await;
    drop(first);
    let mut second = source(&url, "outlives", 2);
    assert_silent(&mut second).await;
    assert_not_redelivered(&url, "outlives", Duration::from_secs(2)).await;
    acknowledge_first_deliveries([held]).await;
    assert_eq!(unsettled(&url, "outlives").await, 0);
}

// Tests of the connection

#[tokio::test(flavor = "multi_thread")]
async fn short_disconnect_redelivers_no_waiting_message() {
    let url = shared();
    stream_of(&url, "cut", &["1", "2", "3", "4"]).await;
    let line = Line::to(&url).await;
    let mut source = source(&line.url, "cut", 8);
    let first = next(&mut source).await;
    delivered(&url, "cut", 4).await;
    line.cut();
    until("the server has lost the source", async || {
        info(&url, "cut").await.num_waiting == 0
    })
    .await;
    line.mend();
    assert_not_redelivered(&url, "cut", Duration::from_secs(8)).await;
    acknowledge_first_deliveries([first]).await;
    for _ in 0..3 {
        acknowledge_first_deliveries([next(&mut source).await]).await;
    }
    publisher(&url)
        .publish(&plain("cut.x", "after"))
        .await
        .unwrap();
    let after = next(&mut source).await;
    assert_eq!(text(&after), "after");
    acknowledge_first_deliveries([after]).await;
    assert_eq!(unsettled(&url, "cut").await, 0);
}

/// Waits until a source has reported progress of redeliveries of `messages` messages, after as many
/// first deliveries. `reports` are what it publishes to the subjects of deliveries.
async fn holds_redeliveries(mut reports: async_nats::Subscriber, messages: usize) {
    let mut held = HashSet::new();
    while held.len() < messages {
        let report = reports.next().await.unwrap();
        // $JS.ACK.<stream>.<consumer>.<deliveries>.<number of the message>.<number of the delivery>
        let numbers: Vec<&str> = report.subject.split('.').collect();
        if numbers[6].parse::<usize>().unwrap() > messages {
            held.insert(numbers[5].to_owned());
        }
    }
}

/// The server redelivers prefetched messages after a long disconnect. The source yields each of
/// them once.
#[tokio::test(flavor = "multi_thread")]
async fn long_disconnect_delivers_a_prefetched_message_once() {
    let url = shared();
    stream_of(&url, "long-cut", &["1", "2", "3"]).await;
    let line = Line::to(&url).await;
    let mut source = source(&line.url, "long-cut", 1);
    let first = next(&mut source).await;
    delivered(&url, "long-cut", 3).await;
    let observer = async_nats::connect(&url).await.unwrap();
    let reports = observer
        .subscribe("$JS.ACK.long-cut.worker.>")
        .await
        .unwrap();
    line.cut();
    let began = Instant::now();
    // Wait for a fixed time, because the server does not show the end of `ack_wait` while no client
    // requests messages.
    until("ack_wait has passed", async || {
        began.elapsed() > Duration::from_secs(2)
    })
    .await;
    line.mend();
    until("the source has requested messages again", async || {
        info(&url, "long-cut").await.num_waiting > 0
    })
    .await;
    until("all messages are redelivered", async || {
        info(&url, "long-cut").await.num_redelivered == 3
    })
    .await;
    // Until a redelivery has arrived, the source can still yield the delivery before it.
    in_time(holds_redeliveries(reports, 3)).await;
    publisher(&url)
        .publish(&plain("long-cut.x", "marker"))
        .await
        .unwrap();
    delivered(&url, "long-cut", 4).await;
    let mut texts = Vec::new();
    for _ in 0..4 {
        let delivery = next(&mut source).await;
        texts.push(text(&delivery));
        delivery.settle(Settlement::Acknowledge).await.unwrap();
    }
    texts.sort_unstable();
    assert_eq!(texts, ["1", "2", "3", "marker"]);
    // The message was redelivered after the disconnect, so the settlement of its first delivery
    // must not return it. The server would count a further delivery.
    first.settle(Settlement::RETRY).await.unwrap();
    assert_silent(&mut source).await;
    assert_eq!(unsettled(&url, "long-cut").await, 0);
}

// Tests of the delivery limit

/// I4: while the database fails, the consumer attempts a message more often than `max_deliver` of
/// the durable consumer. The message is still handled in its first delivery.
#[tokio::test(flavor = "multi_thread")]
async fn i4_database_failure_uses_no_nats_delivery() {
    let url = shared();
    stream_of(&url, "limited", &["kept"]).await;
    make_consumer(&url, "limited", |config| config.max_deliver = 3).await;
    let unserved = Unserved::start(source(&url, "limited", 1), "limited").await;
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
    assert_eq!(unsettled(&url, "limited").await, 0);
}

/// Returns the delivery count of each attempt until the only message of the stream becomes a dead
/// letter.
async fn attempts_until_kept(
    stream: &'static str,
    max_deliver: i64,
    fails: fn(&'static str) -> HandlerError,
) -> Vec<Option<u32>> {
    let url = shared();
    stream_of(&url, stream, &["poison"]).await;
    make_consumer(&url, stream, |config| config.max_deliver = max_deliver).await;
    let db = Database::create();
    let client = db.client().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = move |_: Tx, message: Message| {
        noted.lock().unwrap().push(message.deliveries());
        async move { Err(fails("it never succeeds")) }
    };
    let consumer = Consumer::new(db.pool(4), source(&url, stream, LONG_ACK_WAIT_S))
        .back_off(Duration::from_millis(1), Duration::from_millis(2))
        .handle(stream, handler);
    let running = tokio::spawn(consumer.run(pending()));
    until("the message is a dead letter", async || {
        let sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = $1";
        client
            .query_one(sql, &[&stream])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 1
    })
    .await;
    until("the message is acknowledged", async || {
        unsettled(&url, stream).await == 0
    })
    .await;
    running.abort();
    seen.lock().unwrap().clone()
}

/// I4: a failing message becomes a dead letter one delivery before `max_deliver`. The last delivery
/// is reserved for a crash of the process.
#[tokio::test(flavor = "multi_thread")]
async fn i4_nats_failure_near_max_deliver_becomes_dead_letter() {
    let seen = attempts_until_kept("near-max", 4, HandlerError::from).await;
    assert_eq!(seen, [Some(1), Some(2), Some(3)]);
}

/// I4: with `max_deliver = 1`, a message becomes a dead letter at its first failure.
#[tokio::test(flavor = "multi_thread")]
async fn i4_nats_failure_at_max_deliver_one_becomes_dead_letter() {
    assert_eq!(
        attempts_until_kept("once", 1, HandlerError::from).await,
        [Some(1)]
    );
}

/// Stops a consumer while it handles one message and its source has prefetched all other messages.
/// The handler then succeeds. Returns the summary.
pub async fn stop_while_handling(
    source: impl Source,
    destination: &'static str,
    db: &Database,
    others_are_sent: impl Future<Output = ()>,
) -> Summary {
    let (began, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, goes) = (Arc::clone(&began), Arc::clone(&go));
    let handler = move |_: Tx, _: Message| {
        begins.add_permits(1);
        let goes = Arc::clone(&goes);
        async move {
            goes.acquire().await?.forget();
            Ok(vec![])
        }
    };
    let consumer = Consumer::new(db.pool(4), source)
        .concurrency(1)
        .handle(destination, handler);
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(consumer.run(async {
        let _ = stopped.await;
    }));
    in_time(began.acquire()).await.unwrap().forget();
    others_are_sent.await;
    stop.send(()).unwrap();
    go.add_permits(Semaphore::MAX_PERMITS / 2);
    in_time(running).await.unwrap().unwrap()
}

async fn stop_with_prefetched(
    url: &str,
    stream: &'static str,
    messages: usize,
    db: &Database,
) -> Summary {
    let sent = delivered(url, stream, messages);
    stop_while_handling(source(url, stream, LONG_ACK_WAIT_S), stream, db, sent).await
}

/// Returns the payloads of the dead letters that the consumer of this destination wrote when it
/// stopped.
pub async fn kept_at_a_stop(db: &Database, destination: &str) -> HashSet<String> {
    let sql = "SELECT convert_from(payload, 'UTF8') FROM idem.dead_letters \
               WHERE destination = $1 AND last_error LIKE '%may not redeliver it'";
    let rows = db.client().await.query(sql, &[&destination]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Messages that only the source has prefetched count as `returned`. Messages that the consumer has
/// taken from the source count as `given_back`.
#[tokio::test(flavor = "multi_thread")]
async fn summary_counts_messages_that_the_nats_source_returned() {
    let url = shared();
    let texts = ["handled", "1", "2", "3"];
    stream_of(&url, "returned", &texts).await;
    let summary = stop_with_prefetched(&url, "returned", texts.len(), &Database::create()).await;
    assert_eq!(
        (summary.handled, summary.given_back, summary.returned),
        (1, 0, 3)
    );
    let mut second = source(&url, "returned", LONG_ACK_WAIT_S);
    assert_each_arrives_once(&mut second, &["1", "2", "3"]).await;
}

/// I4: at a stop, prefetched messages become dead letters if the server would not redeliver them.
#[tokio::test(flavor = "multi_thread")]
async fn i4_stop_makes_dead_letters_of_prefetched_last_deliveries() {
    let url = shared();
    let texts = ["handled", "1", "2"];
    stream_of(&url, "last", &texts).await;
    make_consumer(&url, "last", |config| config.max_deliver = 1).await;
    let db = Database::create();
    let summary = stop_with_prefetched(&url, "last", texts.len(), &db).await;
    assert_eq!(
        (summary.handled, summary.rejected, summary.returned),
        (1, 2, 0)
    );
    let kept = kept_at_a_stop(&db, "last").await;
    assert_eq!(kept, HashSet::from(["1".to_owned(), "2".to_owned()]));
    assert_eq!(unsettled(&url, "last").await, 0);
}

/// I4: at a stop, prefetched last deliveries become dead letters in the database if no stream
/// accepts the dead-letter subject.
#[tokio::test(flavor = "multi_thread")]
async fn i4_stop_keeps_last_deliveries_without_dead_letter_stream() {
    let url = shared();
    let texts = ["handled", "1", "2"];
    stream_of(&url, "unburied-last", &texts).await;
    make_consumer(&url, "unburied-last", |config| config.max_deliver = 1).await;
    let db = Database::create();
    let buried = NatsSubscription {
        ack_wait_s: LONG_ACK_WAIT_S,
        dead_letter: Some("no-stream.x".into()),
        ..subscription("unburied-last")
    };
    let source = NatsSource::new(NatsConfig::new(&url), buried);
    let sent = delivered(&url, "unburied-last", texts.len());
    let summary = stop_while_handling(source, "unburied-last", &db, sent).await;
    assert_eq!((summary.handled, summary.rejected), (1, 2));
    let kept = kept_at_a_stop(&db, "unburied-last").await;
    assert_eq!(kept, HashSet::from(["1".to_owned(), "2".to_owned()]));
}

/// Creates a stream with one message, and a durable consumer with `max_deliver = 1`.
async fn stream_that_delivers_once(url: &str, stream: &str, text: &str) {
    stream_of(url, stream, &[text]).await;
    make_consumer(url, stream, |config| config.max_deliver = 1).await;
}

/// I4: a message does not become a dead letter because of an unavailable API. The source holds the
/// message while it waits for the API.
#[tokio::test(flavor = "multi_thread")]
async fn i4_nats_message_near_max_deliver_waits_for_an_api() {
    let url = shared();
    stream_of(&url, "api-down", &["waits"]).await;
    make_consumer(&url, "api-down", |config| config.max_deliver = 2).await;
    let db = Database::create();
    let attempts = Arc::new(AtomicU32::new(0));
    let handler = move |_: Tx, _: Message| {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed);
        async move {
            match attempt {
                0..3 => Err(HandlerError::unavailable("its API is down")),
                _ => Ok(vec![]),
            }
        }
    };
    let consumer = Consumer::new(db.pool(4), source(&url, "api-down", LONG_ACK_WAIT_S))
        .handle("api-down", handler);
    let is_settled = until("the message is settled", async || {
        unsettled(&url, "api-down").await == 0
    });
    let summary = in_time(consumer.run(is_settled)).await.unwrap();
    assert_eq!((summary.handled, summary.rejected), (1, 0));
}

/// I4: while an API is unavailable, a message at its last delivery becomes a dead letter, because a
/// crash of the process would lose the message.
#[tokio::test(flavor = "multi_thread")]
async fn i4_last_delivery_with_unavailable_api_becomes_dead_letter() {
    let url = shared();
    stream_that_delivers_once(&url, "api-away", "kept").await;
    let db = Database::create();
    let handler = |_: Tx, _: Message| async { Err(HandlerError::unavailable("its API is down")) };
    let consumer = Consumer::new(db.pool(4), source(&url, "api-away", LONG_ACK_WAIT_S))
        .handle("api-away", handler);
    let is_settled = until("the message is settled", async || {
        unsettled(&url, "api-away").await == 0
    });
    let summary = in_time(consumer.run(is_settled)).await.unwrap();
    assert_eq!((summary.handled, summary.rejected), (0, 1));
    let sql = "SELECT last_error FROM idem.dead_letters WHERE destination = 'api-away'";
    let reason: String = db.client().await.query_one(sql, &[]).await.unwrap().get(0);
    assert!(reason.ends_with("its API is down"), "{reason}");
}

/// I4: when a last delivery is dropped without a settlement, the source yields the message again,
/// because the server would not redeliver it.
#[tokio::test(flavor = "multi_thread")]
async fn i4_dropped_last_delivery_is_yielded_again() {
    let url = shared();
    stream_that_delivers_once(&url, "dropped-last", "kept").await;
    let mut source = source(&url, "dropped-last", LONG_ACK_WAIT_S);
    drop(next(&mut source).await);
    let again = in_time(next(&mut source)).await;
    assert_eq!(text(&again), "kept");
    acknowledge_first_deliveries([again]).await;
    assert_eq!(unsettled(&url, "dropped-last").await, 0);
}

/// I4: when a last delivery is rejected and the dead-letter subject has no stream, the source
/// yields the message again.
#[tokio::test(flavor = "multi_thread")]
async fn i4_last_delivery_is_yielded_again_when_reject_fails() {
    let url = shared();
    stream_that_delivers_once(&url, "unburied", "poison").await;
    let buried = NatsSubscription {
        dead_letter: Some("unburied-letters.x".into()),
        ..subscription("unburied")
    };
    let mut source = NatsSource::new(NatsConfig::new(&url), buried);
    next(&mut source)
        .await
        .settle(Settlement::reject("bad"))
        .await
        .unwrap_err();
    let again = in_time(next(&mut source)).await;
    assert_eq!(again.message().deliveries(), Some(1));
    declare(&url, "unburied-letters", |_| {}).await;
    again.settle(Settlement::reject("bad")).await.unwrap();
    assert_eq!(unsettled(&url, "unburied").await, 0);
}

/// I4: the worker is aborted while it writes a dead letter. The dead letter is not written and the
/// message is not returned, so the consumer writes the dead letter when it stops.
#[tokio::test(flavor = "multi_thread")]
async fn i4_last_delivery_of_an_aborted_worker_becomes_dead_letter() {
    let url = shared();
    stream_that_delivers_once(&url, "aborted", "kept").await;
    let db = Database::create();
    let (locker, observer) = (db.client().await, db.client().await);
    let lock = "BEGIN; LOCK TABLE idem.dead_letter IN ACCESS EXCLUSIVE MODE";
    locker.batch_execute(lock).await.unwrap();
    // Read `pg_locks` instead of the wait event: a backend that checks for a deadlock has no wait
    // event for a moment.
    let waiting_for_locks = async || -> Vec<i32> {
        let sql = "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
                   WHERE datname = current_database() AND backend_type = 'client backend'
                   AND NOT granted";
        let rows = observer.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let handler = |_: Tx, _: Message| async { Err(HandlerError::terminal("it never succeeds")) };
    let consumer = Consumer::new(db.pool(4), source(&url, "aborted", LONG_ACK_WAIT_S))
        .handle("aborted", handler)
        .grace(Duration::ZERO);
    let (waiting, mut waited) = watch::channel(None);
    let worker_waits = until("the worker waits for the lock", async || {
        let worker = waiting_for_locks().await.first().copied();
        waiting.send_replace(worker);
        worker.is_some()
    });
    let unlock = async {
        let worker = waited.wait_for(Option::is_some).await.unwrap().unwrap();
        until("the worker no longer waits", async || {
            !waiting_for_locks().await.contains(&worker)
        })
        .await;
        locker.batch_execute("COMMIT").await.unwrap();
    };
    let (summary, ()) = in_time(async { tokio::join!(consumer.run(worker_waits), unlock) }).await;
    assert_eq!(summary.unwrap().rejected, 1);
    assert_eq!(
        kept_at_a_stop(&db, "aborted").await,
        HashSet::from(["kept".to_owned()])
    );
    assert_eq!(unsettled(&url, "aborted").await, 0);
}

/// I4: the grace period ends while the handler executes a statement. The message becomes a dead
/// letter, although behind a pooler the dropped transaction holds the claim for some time longer.
#[tokio::test(flavor = "multi_thread")]
async fn i4_last_delivery_cut_in_a_statement_becomes_dead_letter() {
    let url = shared();
    stream_that_delivers_once(&url, "cut-statement", "kept").await;
    let db = Database::create();
    let observer = db.client().await;
    let handler = async |tx: Tx, _: Message| {
        tx.batch_execute("SELECT pg_sleep(600)").await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(db.pool(4), source(&url, "cut-statement", LONG_ACK_WAIT_S))
        .handle("cut-statement", handler)
        .grace(Duration::ZERO);
    let statement_runs = until("the statement runs", async || {
        let sql = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event = 'PgSleep'";
        observer.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1
    });
    let summary = in_time(consumer.run(statement_runs)).await.unwrap();
    assert_eq!(summary.rejected, 1);
    assert_eq!(
        kept_at_a_stop(&db, "cut-statement").await,
        HashSet::from(["kept".to_owned()])
    );
    assert_eq!(unsettled(&url, "cut-statement").await, 0);
}

/// I4: at a stop, an ordered message that failed in its last delivery becomes a dead letter,
/// because a retry at the broker would lose the message.
#[tokio::test(flavor = "multi_thread")]
async fn i4_stop_makes_dead_letter_of_failed_ordered_message() {
    let url = shared();
    declare(&url, "ordered-last", |_| {}).await;
    let mut effect = plain("ordered-last.x", "kept");
    effect.key = Some("k".into());
    publisher(&url).publish(&effect).await.unwrap();
    make_consumer(&url, "ordered-last", |config| config.max_deliver = 1).await;
    let db = Database::create();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let handler = move |_: Tx, _: Message| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err("not today".into()) }
    };
    let hour = Duration::from_secs(3600);
    let consumer = Consumer::new(db.pool(4), source(&url, "ordered-last", LONG_ACK_WAIT_S))
        .handle("ordered-last", handler)
        .back_off(hour, hour)
        .ordered_by_key(true);
    let has_failed = until("the message has failed", async || {
        attempts.load(Ordering::Relaxed) == 1
    });
    let summary = in_time(consumer.run(has_failed)).await.unwrap();
    assert_eq!((summary.handled, summary.rejected), (0, 1));
    assert_eq!(
        kept_at_a_stop(&db, "ordered-last").await,
        HashSet::from(["kept".to_owned()])
    );
    assert_eq!(unsettled(&url, "ordered-last").await, 0);
}

#[tokio::test]
async fn max_deliver_of_a_durable_consumer_is_logged_once() {
    let url = shared();
    stream_of(&url, "warned", &["1", "2"]).await;
    make_consumer(&url, "warned", |config| config.max_deliver = 5).await;
    let (log, _guard) = Log::keep();
    let mut source = source(&url, "warned", 1);
    for _ in 0..2 {
        next(&mut source)
            .await
            .settle(Settlement::Acknowledge)
            .await
            .unwrap();
    }
    let warnings = log.lines(Level::WARN, "max_deliver");
    let [warning] = &warnings[..] else {
        panic!("not one warning: {warnings:?}");
    };
    assert!(
        warning.contains("warned") && warning.contains("worker"),
        "{warning}"
    );
}

/// I4: a durable consumer without explicit acknowledgements is an error, because a message would be
/// lost when its handler fails or its process crashes.
#[tokio::test]
async fn i4_durable_consumer_without_explicit_acks_fails() {
    let url = shared();
    for (stream, policy) in [("no-acks", AckPolicy::None), ("acks-all", AckPolicy::All)] {
        stream_of(&url, stream, &["x"]).await;
        make_consumer(&url, stream, |config| config.ack_policy = policy).await;
        let error = source(&url, stream, 1)
            .next()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("acknowledge") && error.contains(stream),
            "{error}"
        );
    }
}
