//! Tests of a consumer of a Kafka topic.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::Pool;
use idem_cluster::{Cluster, Install};
use idem_kafka::KafkaSource;
use idem_runtime::{Consumer, Handled, HandlerError, Idem, Message, Policies, Tx};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::{
    mock::{Kafka, PATIENCE, number},
    pool,
};

const MESSAGES: u32 = 30;

async fn note(tx: Tx, message: Message) -> Handled {
    let n = number(&message);
    // The first attempt of each tenth message fails. Later messages of the same key must not
    // overtake these messages.
    if n.is_multiple_of(10) && is_first(&tx, n).await? {
        return Err("not this time".into());
    }
    tx.execute("INSERT INTO noted (n) VALUES ($1)", &[&i64::from(n)])
        .await?;
    Ok(vec![])
}

/// Returns true for the first attempt of a message. A sequence counts the attempts, because a
/// rollback does not reset a sequence.
async fn is_first(tx: &Tx, n: u32) -> Result<bool, HandlerError> {
    let row = tx
        .query_one(&format!("SELECT nextval('attempts_{n}') = 1"), &[])
        .await?;
    Ok(row.get(0))
}

/// I4: a failed attempt is retried before later messages of its key are handled. When the consumer
/// stops, it commits its offset.
#[tokio::test(flavor = "multi_thread")]
async fn i4_consumer_keeps_key_order_and_commits_offset_at_stop() {
    let install = Install::from_env().expect("no PostgreSQL install; run cargo xtask setup");
    let cluster = Cluster::builder(&install)
        .name("kafka_consumer")
        .start()
        .unwrap();
    cluster
        .psql(
            "postgres",
            "CREATE EXTENSION idem; CREATE TABLE noted (place bigserial, n bigint);
             CREATE SEQUENCE attempts_0; CREATE SEQUENCE attempts_10; CREATE SEQUENCE attempts_20",
        )
        .unwrap();
    let pool = pool(&cluster);
    let kafka = Kafka::start();
    kafka.publish(0..MESSAGES).await;

    let (stop, stopped) = oneshot::channel::<()>();
    let source: KafkaSource = kafka.source();
    let consumer = Consumer::new(pool.clone(), source)
        .handle("noted", note)
        .back_off(Duration::from_millis(10), Duration::from_millis(50));
    let running = tokio::spawn(consumer.run(async {
        let _ = stopped.await;
    }));
    let client = pool.get().await.unwrap();
    let all = async {
        let sql = "SELECT count(*) FROM noted";
        while client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < i64::from(MESSAGES) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, all)
        .await
        .expect("not all messages were handled in time");
    stop.send(()).unwrap();
    let summary = timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();

    assert_eq!((summary.handled, summary.retried), (u64::from(MESSAGES), 3));
    let rows = client
        .query("SELECT n FROM noted ORDER BY place", &[])
        .await
        .unwrap();
    let noted: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(noted, (0..i64::from(MESSAGES)).collect::<Vec<_>>());
    assert_eq!(
        kafka.committed(),
        Some(i64::from(MESSAGES)),
        "the consumer did not commit the offset of its source"
    );
}

/// Returns a consumer with a handler that never returns, and that counts its runs.
fn stuck(pool: Pool, source: KafkaSource, runs: &Arc<AtomicU32>) -> Consumer<KafkaSource> {
    let runs = Arc::clone(runs);
    let policies = Policies::default().default_rule(|policy| {
        policy.count_attempts = true;
        policy.lease = Duration::from_secs(1);
    });
    Consumer::new(pool, source)
        .idem(Idem::builder().policies(policies).build().unwrap())
        .handle("noted", move |_: Tx, _: Message| {
            runs.fetch_add(1, Ordering::SeqCst);
            pending()
        })
}

/// I4: Kafka counts no deliveries, so the database counts each attempt. A record that crashes its
/// process at each attempt becomes a dead letter, and no longer blocks its partition.
#[tokio::test(flavor = "multi_thread")]
async fn i4_record_that_crashes_its_process_becomes_dead_letter() {
    let install = Install::from_env().expect("no PostgreSQL install; run cargo xtask setup");
    let cluster = Cluster::builder(&install)
        .name("kafka_counted")
        .start()
        .unwrap();
    cluster
        .psql(
            "postgres",
            "CREATE EXTENSION idem;
             SELECT idem_configure_retries('noted', 2, base => '0', jitter => 0)",
        )
        .unwrap();
    let kafka = Kafka::start();
    kafka.publish([7]).await;

    let runs = Arc::new(AtomicU32::new(0));
    for crash in 1..=2 {
        let process = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        process.spawn(stuck(pool(&cluster), kafka.source(), &runs).run(pending()));
        let handler_runs = async {
            while runs.load(Ordering::SeqCst) < crash {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, handler_runs)
            .await
            .expect("the handler does not run");
        // The source and the delivery are dropped without a settlement, as in a crash.
        process.shutdown_background();
    }

    let (stop, stopped) = oneshot::channel::<()>();
    let successor = stuck(pool(&cluster), kafka.source(), &runs).run(async {
        let _ = stopped.await;
    });
    let running = tokio::spawn(successor);
    let settled = async {
        while kafka.committed() != Some(1) && runs.load(Ordering::SeqCst) == 2 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, settled)
        .await
        .expect("the record is neither settled nor handled");
    assert_eq!(
        runs.load(Ordering::SeqCst),
        2,
        "the crashes are not counted"
    );
    stop.send(()).unwrap();
    let summary = timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    assert_eq!((summary.handled, summary.rejected), (0, 1), "{summary:?}");
    let client = pool(&cluster).get().await.unwrap();
    let sql = "SELECT count(*) FROM idem.dead_letters
               WHERE destination = 'noted' AND attempt = 2";
    let letters: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(letters, 1);
}
