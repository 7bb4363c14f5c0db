//! The database is killed while a consumer runs, and restarts. No message is lost, no message takes
//! effect twice, and the consumer limits its connection attempts.

use std::{
    collections::HashSet,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{ConfigConnectImpl, Connect, Manager, ManagerConfig, Pool};
use futures_util::future::BoxFuture;
use idem_cluster::{Cluster, Install};
use idem_runtime::{Consumer, Message, Tx, consumer::Batches};
use idem_testkit::{broker::Broker, source_ended};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, Error, NoTls};

use crate::fixtures::{SCHEMA, done, in_time, message, note, until};

const MESSAGES: usize = 300;
const CONCURRENCY: usize = 4;

/// A connector that counts connection attempts.
struct Counting(Arc<AtomicU64>);

impl Connect for Counting {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let config = config.clone();
        Box::pin(async move { ConfigConnectImpl { tls: NoTls }.connect(&config).await })
    }
}

/// A separate server, which the test can kill.
struct Mortal {
    cluster: Cluster,
    pool: Pool,
    connects: Arc<AtomicU64>,
}

impl Mortal {
    fn new() -> Self {
        let install = Install::from_env().expect("no PostgreSQL install; run cargo xtask setup");
        let cluster = Cluster::builder(&install)
            .name("consumer-mortal")
            .start()
            .unwrap();
        let schema = format!("CREATE EXTENSION idem; {SCHEMA}");
        cluster.psql("postgres", &schema).unwrap();
        let connects = Arc::new(AtomicU64::new(0));
        let manager = Manager::from_connect(
            cluster.connection_string("postgres").parse().unwrap(),
            Counting(Arc::clone(&connects)),
            ManagerConfig::default(),
        );
        Self {
            cluster,
            pool: Pool::builder(manager)
                .max_size(CONCURRENCY + 1)
                .build()
                .unwrap(),
            connects,
        }
    }

    fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }
}

fn messages() -> impl Iterator<Item = Message> {
    (0..MESSAGES).map(|n| message(format!("{}:{n}", n % 5), &format!("{}", n % 5)))
}

/// A handler that is slow enough for the server to be killed while it runs.
async fn work(tx: Tx, message: Message) -> idem_runtime::Handled {
    note(&tx, &message).await?;
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(vec![])
}

fn assert_each_once(done: &[String]) {
    assert_eq!(done.len(), MESSAGES);
    assert_eq!(done.iter().collect::<HashSet<_>>().len(), MESSAGES);
}

async fn assert_survives_outage(
    change: impl FnOnce(Consumer<Broker>) -> Consumer<Broker>,
    gives_back: bool,
) {
    let mut mortal = tokio::task::block_in_place(Mortal::new);
    let broker = Broker::with(messages()).closed();
    let consumer = Consumer::new(mortal.pool.clone(), broker.clone())
        .handle("away", work)
        .concurrency(CONCURRENCY)
        // A low limit is sufficient, because no handler fails by itself.
        .max_deliveries(2);
    let running = tokio::spawn(change(consumer).run(pending()));
    until("some messages are acknowledged", async || {
        broker.told().acknowledged.len() > MESSAGES / 10
    })
    .await;

    let before = mortal.connects();
    tokio::task::block_in_place(|| mortal.cluster.kill()).unwrap();
    if gives_back {
        until("all messages are released", async || {
            broker.unsettled() == 0
        })
        .await;
    }
    // From here on, the consumer connects only to probe the database, with back-off. In addition,
    // it connects once for each of its two inboxes, in which it looks for requeued messages. With
    // order by key, it first tries the messages that it holds.
    let (began, asked) = (Instant::now(), broker.told().asked);
    let at_first = mortal.connects();
    until("the database is probed", async || {
        mortal.connects() >= at_first + 4 + 2
    })
    .await;
    if gives_back {
        assert!(
            began.elapsed() >= Duration::from_millis(700),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(
            broker.told().asked,
            asked,
            "messages were fetched during the outage"
        );
    }
    // The consumer may connect for the messages that it had fetched before it noticed the outage,
    // and for its probes. The limit is far below one connection attempt for each message.
    let attempts = mortal.connects() - before;
    assert!(
        attempts <= 2 * 5 * CONCURRENCY as u64 + 8 + 2,
        "{attempts} attempts to connect"
    );

    tokio::task::block_in_place(|| mortal.cluster.start()).unwrap();
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!((summary.retried, summary.rejected), (0, 0), "{summary:?}");
    assert_eq!(summary.given_back > 0, gives_back, "{summary:?}");
    // If the commit of a message took effect but its reply was lost, the redelivery is a duplicate.
    assert_eq!((summary.handled + summary.duplicates) as usize, MESSAGES);
    let done = done(&mortal.pool).await;
    assert_each_once(&done);
    if !gives_back {
        for key in 0..5 {
            let places = done
                .iter()
                .filter_map(|id| id.strip_prefix(&format!("{key}:")));
            let places: Vec<usize> = places.map(|place| place.parse().unwrap()).collect();
            assert!(places.is_sorted(), "key {key}: {places:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_released_during_a_database_outage() {
    assert_survives_outage(|consumer| consumer, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_released_during_a_database_outage() {
    let batches = Batches::new(10).linger(Duration::from_millis(5));
    assert_survives_outage(|consumer| consumer.batches(batches), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_keep_key_order_during_a_database_outage() {
    assert_survives_outage(|consumer| consumer.ordered_by_key(true), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_does_not_wait_for_an_unavailable_database() {
    let mut mortal = tokio::task::block_in_place(Mortal::new);
    let pool = mortal.pool.clone();
    let broker = Broker::with(messages());
    let noticed = async {
        until("the first message is acknowledged", async || {
            !broker.told().acknowledged.is_empty()
        })
        .await;
        tokio::task::block_in_place(|| mortal.cluster.kill()).unwrap();
        let is_noticed = async || !broker.told().released.is_empty() && broker.unsettled() == 0;
        until("all messages are released", is_noticed).await;
    };
    let consumer = Consumer::new(pool, broker.clone())
        .handle("away", work)
        .concurrency(CONCURRENCY)
        .grace(Duration::from_secs(3600));
    let summary = in_time(consumer.run(noticed)).await.unwrap();
    let acknowledged = broker.told().acknowledged.len();
    assert_eq!(
        (summary.handled, summary.rejected),
        (acknowledged as u64, 0)
    );
    assert_eq!(
        (broker.unsettled(), broker.waiting()),
        (0, MESSAGES - acknowledged)
    );
}
