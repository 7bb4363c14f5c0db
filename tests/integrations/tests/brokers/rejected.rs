//! I4: idem consumes messages of producers that do not use idem.

use std::{future::pending, time::Duration};

use idem_client::Effect;
use idem_runtime::transport::headers::belongs_to_a_delivery;
use idem_runtime::{Consumer, HandlerError, Message, Publisher, Relay, Source, Tx};
use idem_testkit::{Database, until};
use tokio::{select, sync::oneshot, time::timeout};
use uuid::Uuid;

use crate::DEADLINE;

/// Consumes two messages without ids, "first" and "second", from a source without a dead-letter
/// target. Asserts that both become dead letters in the database and are acknowledged, and that
/// both are handled after a requeue.
pub async fn assert_rejected_and_requeued(source: impl Source) {
    let db = Database::create();
    let client = db.client().await;
    client
        .batch_execute("CREATE TABLE done (text text)")
        .await
        .unwrap();
    let count = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(db.pool(4), source)
        .back_off(Duration::from_millis(10), Duration::from_millis(100))
        .handle("orders", |tx: Tx, message: Message| async move {
            let text = String::from_utf8(message.payload().to_vec())?;
            tx.execute("INSERT INTO done (text) VALUES ($1)", &[&text])
                .await?;
            Ok(vec![])
        });
    let running = tokio::spawn(consumer.run(async {
        let _ = stopped.await;
    }));

    until("both are dead letters", async || {
        count("SELECT count(*) FROM idem.dead_letters").await == 2
    })
    .await;
    let sql = "SELECT string_agg(convert_from(payload, 'UTF8'), ' ' ORDER BY seq), \
               bool_and(last_error LIKE '%has no id%') \
               FROM idem.dead_letters WHERE destination = 'orders'";
    let row = client.query_one(sql, &[]).await.unwrap();
    let mut texts: Vec<&str> = row.get::<_, &str>(0).split(' ').collect();
    texts.sort_unstable();
    assert_eq!((texts, row.get(1)), (vec!["first", "second"], true));

    assert_eq!(count("SELECT idem_requeue_all('orders')::bigint").await, 2);
    until("both are handled", async || {
        count("SELECT count(*) FROM done").await == 2
    })
    .await;
    stop.send(()).unwrap();
    let summary = timeout(DEADLINE, running).await.unwrap().unwrap().unwrap();
    assert_eq!(
        (
            summary.handled,
            summary.rejected,
            summary.failed_settlements
        ),
        (2, 2, 0)
    );
    assert_eq!(count("SELECT count(DISTINCT text) FROM done").await, 2);
    assert_eq!(count("SELECT count(*) FROM idem.pending").await, 0);
}

/// The SQL function that forwards dead letters leaves out the headers that publishers leave out.
#[tokio::test]
async fn sql_and_publishers_leave_out_the_same_headers() {
    const NAMES: &[&str] = &[
        "BCC",
        "CC",
        "Message-Id",
        "Nats-Expected-Stream",
        "Nats-TTL",
        "X-First-Death-Queue",
        "cc",
        "content-type",
        "correlation-id",
        "idem-dead-letter-reason",
        "idem-key",
        "idem-source-topic",
        "message-id",
        "nats",
        "tenant",
        "x-acquired-count",
        "x-death",
        "x-delivery-count",
        "x-delivery-counts",
        "x-last-death-reason",
    ];
    let db = Database::create();
    let client = db.client().await;
    let sql = "SELECT array_agg(name ORDER BY n)
                 FROM unnest($1::text[]) WITH ORDINALITY h (name, n)
                WHERE idem.headers_to_forward(jsonb_build_object(name, 1)) IS NULL";
    let row = client.query_one(sql, &[&NAMES]).await.unwrap();
    let by_sql: Vec<String> = row.get(0);
    let by_publishers: Vec<_> = NAMES
        .iter()
        .filter(|name| belongs_to_a_delivery(name))
        .collect();
    assert_eq!(by_sql.iter().collect::<Vec<_>>(), by_publishers);
    assert_eq!(by_publishers.len(), 14);
}

/// Consumes the message "poison" from a source whose broker refuses its dead letter. Asserts that
/// the message becomes a dead letter in the database and is acknowledged.
pub async fn assert_kept_in_the_database(source: impl Source) {
    let db = Database::create();
    let client = db.client().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer =
        Consumer::new(db.pool(4), source).handle("orders", |_: Tx, _: Message| async move {
            Err::<Vec<Effect>, _>(HandlerError::terminal("no such order"))
        });
    let running = tokio::spawn(consumer.run(async {
        let _ = stopped.await;
    }));
    let letters = "SELECT count(*) FROM idem.dead_letters \
                   WHERE destination = 'orders' AND convert_from(payload, 'UTF8') = 'poison'";
    until("the database keeps the dead letter", async || {
        client
            .query_one(letters, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 1
    })
    .await;
    stop.send(()).unwrap();
    let summary = timeout(DEADLINE, running).await.unwrap().unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed_settlements), (0, 3));
}

/// Consumes a message with this id and the header `tenant`. The handler fails with a terminal
/// error. An operator forwards the dead letter to the topic, and the message is handled under its
/// new id.
pub async fn assert_forwarded(
    id: &'static str,
    source: impl Source,
    publisher: impl Publisher,
    topic: &str,
) {
    let db = Database::create();
    let client = db.client().await;
    client
        .batch_execute("CREATE TABLE done (id text)")
        .await
        .unwrap();
    let count = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    let handler = move |tx: Tx, message: Message| async move {
        let received = message.message_id().unwrap_or_default().to_owned();
        if received == id {
            return Err(HandlerError::terminal("no such customer"));
        }
        assert_eq!(message.header("tenant"), Some("t-1"));
        tx.execute("INSERT INTO done (id) VALUES ($1)", &[&received])
            .await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(db.pool(4), source).handle("orders", handler);
    let forwarding = async {
        until("the message is a dead letter", async || {
            count("SELECT count(*) FROM idem.dead_letters").await == 1
        })
        .await;
        let forward = "SELECT idem_forward($1, 'orders', $2)";
        let forwarded = client.query_one(forward, &[&id, &topic]).await.unwrap();
        let forwarded: Uuid = forwarded.get(0);
        until("the message is handled", async || {
            count("SELECT count(*) FROM done").await == 1
        })
        .await;
        let done: String = client
            .query_one("SELECT id FROM done", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(done, forwarded.to_string());
    };
    select! {
        ended = consumer.run(pending()) => panic!("{ended:?}"),
        ended = Relay::new(db.pool(2), publisher).run(pending()) => panic!("{ended:?}"),
        forwarded = timeout(DEADLINE, forwarding) => forwarded.unwrap(),
    }
    assert_eq!(count("SELECT count(*) FROM idem.dead_letters").await, 0);
}
