//! Tests of a consumer of a Kafka topic with the default settings.

use std::time::Duration;

use idem_cluster::{Cluster, Install};
use idem_kafka::KafkaSource;
use idem_runtime::{Consumer, Handled, HandlerError, Message, Tx};
use tokio::{sync::oneshot, time::timeout};

use crate::{Kafka, PATIENCE, database::pool, number};

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
            tokio::time::sleep(Duration::from_millis(10)).await;
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
