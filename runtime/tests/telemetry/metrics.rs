//! Tests of the metrics of messages, consumers and relays.
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    os::unix::fs::symlink,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, Pool};
use futures_util::future::BoxFuture;
use idem_client::{Effect, send};
use idem_runtime::{
    Consumer, Delivery, HandlerError, Idem, Message, OutgoingMessage, PublishError, Publisher,
    Receipt, Relay, Settlement, Source, Tx, consumer::Selector, describe_metrics,
    transport::TransportError,
};
use idem_testkit::{Database, source_ended, until};
use metrics::{
    Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::mpsc;
use tokio_postgres::{NoTls, config::Host};

use crate::Broker;

/// Returns the measurements since the last execution of this function, as lines such as
/// `idem_in_flight{destination=orders} 1`.
///
/// Each execution resets all values to zero, also those of gauges. So if a gauge is incremented
/// before an execution and decremented after it, the next execution returns -1.
fn measurements(snapshotter: &Snapshotter) -> BTreeSet<String> {
    let measured = snapshotter.snapshot().into_vec().into_iter();
    let lines = measured.filter_map(|(key, _, _, value)| {
        let value = match value {
            DebugValue::Counter(0) => return None,
            DebugValue::Counter(count) => count.to_string(),
            DebugValue::Gauge(value) => format!("{value}"),
            // Durations vary, so the line contains the number of measurements instead.
            DebugValue::Histogram(values) if values.is_empty() => return None,
            DebugValue::Histogram(values) => {
                assert!(values.iter().all(|value| value.0 >= 0.0));
                format!("{} times", values.len())
            }
        };
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        Some(format!(
            "{}{{{}}} {value}",
            key.key().name(),
            labels.join(",")
        ))
    });
    lines.collect()
}

fn lines<const N: usize>(lines: [&str; N]) -> BTreeSet<String> {
    lines.map(str::to_owned).into()
}

fn message(id: &str) -> Message {
    Message::new("orders", "").with_message_id(id)
}

const CONFLICT: &str = "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$";

#[tokio::test]
async fn outcomes_and_messages_in_flight_are_measured() {
    let database = Database::create();
    let pool = database.pool(2);
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let seen = recorder.snapshotter();
    let idem = Idem::new();

    let attempts = AtomicU32::new(0);
    let handler = |tx: Tx, _| {
        let lines_now = measurements(&seen);
        assert!(
            lines_now
                .iter()
                .any(|line| line.starts_with("idem_in_flight{destination=orders}")),
            "{lines_now:?}"
        );
        let is_first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if is_first {
                tx.batch_execute(CONFLICT).await?;
            }
            Ok(vec![])
        }
    };
    let _ = idem.process(&pool, &message("m-1"), handler).await.unwrap();
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
    // The handler has already read the increment of the gauge, so only the decrement is left here.
    assert_eq!(
        measurements(&seen),
        lines([
            "idem_in_flight{destination=orders} -1",
            "idem_process_duration_seconds{destination=orders} 1 times",
            "idem_processed_total{destination=orders,outcome=new} 1",
        ])
    );

    let unused = |_: Tx, _| async {
        Err(HandlerError::terminal(
            "the handler was called for a duplicate",
        ))
    };
    let _ = idem.process(&pool, &message("m-1"), unused).await.unwrap();
    assert_eq!(
        measurements(&seen),
        lines([
            "idem_in_flight{destination=orders} 0",
            "idem_process_duration_seconds{destination=orders} 1 times",
            "idem_processed_total{destination=orders,outcome=duplicate} 1",
        ])
    );

    let fails = |tx: Tx, _| async move { Ok(tx.batch_execute(CONFLICT).await.map(|()| vec![])?) };
    assert!(idem.process(&pool, &message("m-2"), fails).await.is_err());
    assert_eq!(
        measurements(&seen),
        lines([
            "idem_in_flight{destination=orders} 0",
            "idem_process_duration_seconds{destination=orders} 1 times",
            "idem_processed_total{destination=orders,outcome=failed} 1",
            "idem_retries_total{destination=orders,kind=conflict} 4",
        ])
    );

    // Drop the future while its handler runs.
    let (begun, mut begins) = mpsc::unbounded_channel();
    let hangs = |tx: Tx, _| {
        begun.send(()).unwrap();
        async move {
            tx.batch_execute("SELECT pg_sleep(600)").await?;
            Ok(vec![])
        }
    };
    let dropped = message("m-3");
    tokio::select! {
        processed = idem.process(&pool, &dropped, hangs) => panic!("{processed:?}"),
        _ = begins.recv() => {}
    }
    assert_eq!(
        measurements(&seen),
        lines([
            "idem_in_flight{destination=orders} 0",
            "idem_process_duration_seconds{destination=orders} 1 times",
            "idem_processed_total{destination=orders,outcome=cancelled} 1",
        ])
    );

    let handler = |_: Tx, _| async { Ok(vec![]) };
    let results = idem
        .process_batch(&pool, &[message("m-1"), message("m-4")], handler)
        .await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(
        measurements(&seen),
        lines([
            "idem_in_flight{destination=orders} 0",
            "idem_process_duration_seconds{destination=orders} 2 times",
            "idem_processed_total{destination=orders,outcome=duplicate} 1",
            "idem_processed_total{destination=orders,outcome=new} 1",
        ])
    );
}

/// A source that fails once and then delivers the given messages.
struct Script {
    has_failed: bool,
    messages: VecDeque<Message>,
    settled: mpsc::UnboundedSender<(String, Settlement)>,
}

struct Told(String, mpsc::UnboundedSender<(String, Settlement)>);

impl Receipt for Told {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        self.1.send((self.0, settlement)).unwrap();
        Box::pin(async { Ok(()) })
    }
}

impl Source for Script {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        if !std::mem::replace(&mut self.has_failed, true) {
            return Err("the broker failed".into());
        }
        let Some(message) = self.messages.pop_front() else {
            return Ok(None);
        };
        let receipt = Told(
            message.message_id().unwrap_or_default().to_owned(),
            self.settled.clone(),
        );
        Ok(Some(Delivery::new(message, receipt)))
    }
}

#[tokio::test]
async fn consumer_counts_its_settlements() {
    let database = Database::create();
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (settled, _keep) = mpsc::unbounded_channel();
    let source = Script {
        has_failed: false,
        messages: [
            message("m-1"),
            message("m-2"),
            message("m-3"),
            Message::new("stray.4711", ""),
        ]
        .into(),
        settled,
    };
    let handler = |_: Tx, message: Message| async move {
        match message.message_id() {
            Some("m-1") => Ok(vec![]),
            Some("m-2") => Err(HandlerError::terminal("never")),
            _ => Err("temporary failure".into()),
        }
    };
    let summary = Consumer::new(database.pool(2), source)
        .route(Selector::topic("orders"), "orders.place", handler)
        .concurrency(1)
        .run(std::future::pending())
        .await;
    let summary = source_ended(summary);
    assert_eq!(
        (summary.handled, summary.rejected, summary.retried),
        (1, 2, 1)
    );
    let consumer: BTreeSet<_> = measurements(&recorder.snapshotter())
        .into_iter()
        .filter(|line| line.starts_with("idem_consumer"))
        .collect();
    assert_eq!(
        consumer,
        lines([
            "idem_consumer_settled_total{destination=,settlement=reject} 1",
            "idem_consumer_settled_total{destination=orders.place,settlement=acknowledge} 1",
            "idem_consumer_settled_total{destination=orders.place,settlement=reject} 1",
            "idem_consumer_settled_total{destination=orders.place,settlement=retry} 1",
            "idem_consumer_source_errors_total{} 1",
        ])
    );
}

#[tokio::test]
async fn consumer_gauge_shows_an_unavailable_database() {
    let database = Database::create();
    let recorder = Watcher::default();
    let _guard = metrics::set_default_local_recorder(&recorder);

    // The socket directory is a link. The link does not exist yet, so the database is unavailable.
    let direct: tokio_postgres::Config = database.direct_url().parse().unwrap();
    let [Host::Unix(directory)] = direct.get_hosts() else {
        panic!("the cluster does not listen on one socket");
    };
    // Create the link in a directory that is removed together with the server.
    let link = directory.join(format!("{}-away", database.name()));
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(&link)
        .dbname(database.name())
        .user(direct.get_user().unwrap());
    config.port(direct.get_ports().first().copied().unwrap_or(5432));
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(2)
        .build()
        .unwrap();

    let (settled, mut settlements) = mpsc::unbounded_channel();
    let (deliver, deliveries) = mpsc::unbounded_channel();
    deliver.send(message("m-1")).unwrap();
    let source = Live(deliveries, settled);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let consumer = Consumer::new(pool, source)
        .handle("orders", |_: Tx, _| async { Ok(vec![]) })
        .concurrency(1)
        .run(async {
            let _ = stopped.await;
        });
    let is_away = || recorder.set_to("idem_consumer_database_away");
    let (summary, ()) = tokio::join!(consumer, async {
        until("the database is unavailable", async || is_away() == [1.0]).await;
        symlink(directory, &link).unwrap();
        let (_, settlement) = settlements.recv().await.unwrap();
        assert_eq!(settlement, Settlement::Acknowledge);
        assert_eq!(is_away(), [1.0, 0.0]);
        stop.send(()).unwrap();
    });
    assert_eq!(summary.unwrap().handled, 1);
}

/// A source that delivers the messages that it receives from a channel.
struct Live(
    mpsc::UnboundedReceiver<Message>,
    mpsc::UnboundedSender<(String, Settlement)>,
);

impl Source for Live {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let message = self.0.recv().await;
        Ok(message.map(|message| Delivery::new(message, Told(String::new(), self.1.clone()))))
    }
}

#[tokio::test]
async fn relay_counts_the_results_of_its_broker() {
    let database = Database::create();
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let seen = recorder.snapshotter();
    let client = database.client().await;
    for topic in ["taken", "rejected", "permanent"] {
        send(&client, &Effect::bytes(topic, [], "x")).await.unwrap();
    }

    let (broker, mut published) = Broker::new();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relay = Relay::new(database.pool(3), broker)
        .max_attempts(2)
        .back_off(Duration::from_millis(1), Duration::from_millis(1));
    let status = relay.status();
    let relay = relay.run(async {
        let _ = stopped.await;
    });
    let mut total = BTreeSet::new();
    let (summary, ()) = tokio::join!(relay, async {
        published.recv().await.unwrap();
        until("the other effects are parked", async || {
            status.borrow().parked == 2
        })
        .await;
        // Also wait until the effects are acknowledged.
        until("the relay has no lag", async || {
            let waiting = client
                .query_one("SELECT sum(lag_messages)::bigint FROM idem.relays", &[])
                .await;
            waiting.unwrap().get::<_, i64>(0) == 0
        })
        .await;
        total = measurements(&seen);
        stop.send(()).unwrap();
    });
    assert_eq!(summary.unwrap().parked, 2);
    let lag = total
        .iter()
        .find(|line| line.starts_with("idem_relay_lag_seconds{relay=default,partition=0} "))
        .cloned();
    assert!(total.remove(&lag.expect("no lag was measured")));
    assert_eq!(
        total,
        lines([
            "idem_relay_batch_effects{relay=default} 1 times",
            "idem_relay_broker_away{relay=default} 0",
            "idem_relay_database_away{relay=default} 0",
            "idem_relay_in_flight{relay=default} 0",
            "idem_relay_parked_total{relay=default} 2",
            "idem_relay_publish_duration_seconds{relay=default} 4 times",
            "idem_relay_published_total{relay=default,outcome=permanent} 1",
            "idem_relay_published_total{relay=default,outcome=published} 1",
            "idem_relay_published_total{relay=default,outcome=rejected} 2",
            "idem_relay_unavailable_topics{relay=default} 0",
        ])
    );
}

/// A publisher with a failing environment: the first two attempts fail for each topic.
#[derive(Default)]
struct Environment(Mutex<HashMap<String, u32>>);

impl Publisher for Environment {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let mut attempts = self.0.lock().unwrap();
        let attempts = attempts.entry(message.topic.clone()).or_default();
        *attempts += 1;
        match message.topic.as_str() {
            _ if *attempts > 2 => Ok(()),
            "absent" => Err(PublishError::TopicUnavailable("no such queue".into())),
            _ => Err(PublishError::Unavailable("connection refused".into())),
        }
    }
}

/// Goal: for each reason for which a relay waits, there is a gauge, so that each reason can raise
/// an alarm.
#[tokio::test]
async fn gauges_show_what_a_relay_waits_for() {
    let database = Database::create();
    let client = database.client().await;
    let recorder = Watcher::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relay = Relay::new(database.pool(3), Environment::default()).name("later");
    let status = relay.status();
    let relay = relay.run(async {
        let _ = stopped.await;
    });
    let history = |gauge: &str| {
        let mut values = recorder.set_to(gauge);
        values.dedup();
        values
    };
    let (summary, ()) = tokio::join!(relay, async {
        until("the relay is missing", async || {
            history("idem_relay_database_away") == [0.0, 1.0]
        })
        .await;
        client
            .batch_execute("SELECT idem_create_relay('later')")
            .await
            .unwrap();
        until("the database is available", async || {
            status.borrow().database
        })
        .await;
        for topic in ["absent", "away"] {
            send(&client, &Effect::bytes(topic, [], "x")).await.unwrap();
        }
        until("all effects are published", async || {
            status.borrow().published == 2
        })
        .await;
        stop.send(()).unwrap();
    });
    assert_eq!(summary.unwrap().parked, 0);
    for gauge in [
        "idem_relay_database_away",
        "idem_relay_broker_away",
        "idem_relay_unavailable_topics",
    ] {
        assert_eq!(history(gauge), [0.0, 1.0, 0.0], "{gauge}");
    }
}

#[tokio::test]
async fn relay_measures_its_lag() {
    let database = Database::create();
    let recorder = Watcher::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let client = database.client().await;
    send(&client, &Effect::bytes("taken", [], "x"))
        .await
        .unwrap();
    // Let the effect wait for more than a second before the relay starts.
    let aged = "SELECT now() - recorded_at > interval '1 second' FROM idem.outbox";
    until("the effect is a second old", async || {
        client.query_one(aged, &[]).await.unwrap().get::<_, bool>(0)
    })
    .await;

    let (broker, mut published) = Broker::new();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relay = Relay::new(database.pool(3), broker).run(async {
        let _ = stopped.await;
    });
    let lag = || recorder.set_to("idem_relay_lag_seconds");
    let (summary, ()) = tokio::join!(relay, async {
        published.recv().await.unwrap();
        assert!(lag()[0] >= 1.0, "{:?}", lag());
        until("the lag is measured again", async || lag().len() > 1).await;
        assert_eq!(lag()[1], 0.0);
        stop.send(()).unwrap();
    });
    assert_eq!(summary.unwrap().published, 1);
}

/// A recorder of the described metrics and of every value to which a gauge is set.
#[derive(Default)]
struct Watcher {
    described: Mutex<BTreeSet<String>>,
    gauges: Mutex<HashMap<String, Arc<History>>>,
}

#[derive(Default)]
struct History(Mutex<Vec<f64>>);

impl GaugeFn for History {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl Watcher {
    fn gauge(&self, name: &str) -> Arc<History> {
        let mut gauges = self.gauges.lock().unwrap();
        Arc::clone(gauges.entry(name.to_owned()).or_default())
    }

    fn set_to(&self, gauge: &str) -> Vec<f64> {
        self.gauge(gauge).0.lock().unwrap().clone()
    }
}

impl Recorder for Watcher {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described
            .lock()
            .unwrap()
            .insert(key.as_str().to_owned());
    }
    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described
            .lock()
            .unwrap()
            .insert(key.as_str().to_owned());
    }
    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described
            .lock()
            .unwrap()
            .insert(key.as_str().to_owned());
    }
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.gauge(key.name()))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn every_metric_is_described_and_documented() {
    let recorder = Watcher::default();
    metrics::with_local_recorder(&recorder, describe_metrics);
    let table = include_str!("../../../docs/telemetry.md").lines();
    let documented: BTreeSet<_> = table
        .filter_map(|line| line.strip_prefix("| `idem_"))
        .filter_map(|rest| rest.split(['{', '`']).next())
        .map(|name| format!("idem_{name}"))
        .collect();
    assert_eq!(*recorder.described.lock().unwrap(), documented);
}
