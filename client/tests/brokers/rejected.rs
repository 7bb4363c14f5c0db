//! I4: idem in front of a queue whose producers know nothing of it.

use std::time::Duration;

use idem_client::{Consumer, Message, Source, Tx};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    DEADLINE,
    support::{Database, until},
};

/// Consumes two messages without ids, "first" and "second", from a source that names no place for
/// rejected messages. Both are kept in the database and acknowledged. Requeued, both are handled.
pub async fn assert_rejected_and_requeued(source: impl Source) {
    let db = Database::create();
    let client = db.connect().await;
    client.batch_execute("CREATE TABLE done (text text)").await.unwrap();
    let count = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(db.pool(4), source)
        .back_off(Duration::from_millis(10), Duration::from_millis(100))
        .handle("orders", |tx: Tx, message: Message| async move {
            let text = String::from_utf8(message.payload().to_vec())?;
            tx.execute("INSERT INTO done (text) VALUES ($1)", &[&text]).await?;
            Ok(vec![])
        });
    let running = tokio::spawn(consumer.run(async {
        let _ = stopped.await;
    }));

    until("both are kept", async || {
        count("SELECT count(*) FROM idem.dead_letters").await == 2
    })
    .await;
    let sql = "SELECT string_agg(convert_from(payload, 'UTF8'), ' ' ORDER BY seq), bool_and(last_error LIKE '%has no id%') \
               FROM idem.dead_letters WHERE destination = 'orders'";
    let row = client.query_one(sql, &[]).await.unwrap();
    let mut texts: Vec<&str> = row.get::<_, &str>(0).split(' ').collect();
    texts.sort_unstable();
    assert_eq!((texts, row.get(1)), (vec!["first", "second"], true));

    assert_eq!(count("SELECT idem_requeue_all('orders')::bigint").await, 2);
    until("both are handled", async || count("SELECT count(*) FROM done").await == 2).await;
    stop.send(()).unwrap();
    let summary = timeout(DEADLINE, running).await.unwrap().unwrap().unwrap();
    assert_eq!((summary.handled, summary.rejected, summary.failed_settlements), (2, 2, 0));
    assert_eq!(count("SELECT count(DISTINCT text) FROM done").await, 2);
    assert_eq!(count("SELECT count(*) FROM idem.pending").await, 0);
}
