//! Each message of a Kafka topic becomes one row of a table, also when sources end before they
//! settle.

use idem_client::Effect;
use idem_cluster::{Cluster, Install};
use idem_runtime::{Handled, Idem, Message, Processed, Settlement, Source, Tx};

use crate::{
    mock::{Kafka, acknowledge, number, take},
    pool,
};

const MESSAGES: u32 = 200;

async fn book(tx: Tx, message: Message) -> Handled {
    let n = i64::from(number(&message));
    tx.execute("INSERT INTO booked (n) VALUES ($1)", &[&n])
        .await?;
    Ok(vec![Effect::json("booked", &n)?])
}

/// Messages that were processed but not settled are delivered again by the next source, and are
/// duplicates then.
#[tokio::test]
async fn unsettled_message_takes_effect_once_after_a_restart() {
    let install = Install::from_env().expect("no PostgreSQL install; run cargo xtask setup");
    let cluster = Cluster::builder(&install).name("kafka").start().unwrap();
    cluster
        .psql(
            "postgres",
            "CREATE EXTENSION idem; CREATE TABLE booked (n bigint)",
        )
        .unwrap();
    let pool = pool(&cluster);
    let idem = Idem::new();
    let kafka = Kafka::start();
    kafka.publish(0..MESSAGES).await;

    // Each source processes 60 messages and settles 40 of them. The other 20 messages are claimed
    // in the database, but Kafka delivers them again.
    let (mut new, mut duplicates) = (0, 0);
    let mut count = |processed| match processed {
        Processed::New { effects } => {
            assert_eq!(effects.len(), 1);
            new += 1;
        }
        Processed::Duplicate { .. } => duplicates += 1,
        other => panic!("{other:?}"),
    };
    for settled in [40, 80, 120] {
        let mut source = kafka.source();
        let deliveries = take(&mut source, 60).await;
        for delivery in &deliveries {
            count(idem.process(&pool, delivery.message(), book).await.unwrap());
        }
        acknowledge(deliveries.into_iter().take(40)).await;
        source.close().await;
        assert_eq!(kafka.committed(), Some(settled));
    }
    // The last source settles all its messages.
    let mut source = kafka.source();
    for delivery in take(&mut source, 80).await {
        count(idem.process(&pool, delivery.message(), book).await.unwrap());
        delivery.settle(Settlement::Acknowledge).await.unwrap();
    }
    source.close().await;
    assert_eq!(kafka.committed(), Some(i64::from(MESSAGES)));
    assert_eq!((new, duplicates), (MESSAGES, 60));

    let client = pool.get().await.unwrap();
    let rows = client
        .query("SELECT n FROM booked ORDER BY n", &[])
        .await
        .unwrap();
    let booked: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(booked, (0..i64::from(MESSAGES)).collect::<Vec<_>>());
    let sql = "SELECT count(DISTINCT payload), count(*) FROM idem.outbox_row";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(
        (row.get(0), row.get(1)),
        (i64::from(MESSAGES), i64::from(MESSAGES))
    );
}
