//! A failed message is retried later, and is rejected after too many failures.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use idem_runtime::{
    Consumer, HandlerError, Idem, Message, Settlement, Tx,
    consumer::Selector,
    filter::{Before, Filter},
};
use idem_testkit::{
    broker::{Broker, Told},
    source_ended,
};
use tokio_postgres::{Client, error::SqlState};

use crate::fixtures::{Fixture, in_time, message, note, until};

const SHORT: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_millis(16);

/// Returns the retry delays of one message.
fn pauses(told: &Told, id: &str) -> Vec<Duration> {
    let of_it = told.retried.iter().filter(|(of, _)| of == id);
    of_it.map(|(_, after)| *after).collect()
}

fn assert_growing(pauses: &[Duration]) {
    // The delay doubles each time. Jitter adds up to 100 % of it.
    for (n, pause) in pauses.iter().enumerate() {
        let least = SHORT.saturating_mul(1 << n).min(LONG);
        assert!((least..=2 * least).contains(pause), "pause {n}: {pause:?}");
    }
}

async fn assert_rejected_after_five_deliveries(broker: Broker) {
    let fixture = Fixture::new().await;
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let handler = move |tx: Tx, message: Message| {
        let counted = Arc::clone(&counted);
        async move {
            note(&tx, &message).await?;
            if message.message_id() == Some("bad") {
                counted.fetch_add(1, Ordering::Relaxed);
                return Err("no".into());
            }
            Ok(vec![])
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("failures", handler)
        .back_off(SHORT, LONG)
        .max_deliveries(5);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 4, 1)
    );
    assert_eq!(attempts.load(Ordering::Relaxed), 5);
    assert_eq!(
        fixture.done().await,
        ["good"],
        "a failed attempt was not rolled back"
    );
    let told = broker.told();
    assert_growing(&pauses(&told, "bad"));
    assert_eq!(told.rejected.len(), 1);
    assert!(
        told.rejected[0].1.contains("failed too often"),
        "{:?}",
        told.rejected
    );
}

#[tokio::test]
async fn max_deliveries_applies_to_broker_counts() {
    assert_rejected_after_five_deliveries(
        Broker::with([message("bad", ""), message("good", "")])
            .counting()
            .closed(),
    )
    .await;
}

#[tokio::test]
async fn max_deliveries_applies_without_broker_counts() {
    assert_rejected_after_five_deliveries(
        Broker::with([message("bad", ""), message("good", "")]).closed(),
    )
    .await;
}

#[tokio::test]
async fn max_deliveries_applies_if_broker_counts_only_the_first() {
    let messages = [message("bad", ""), message("good", "")];
    assert_rejected_after_five_deliveries(Broker::with(messages).counting_the_first().closed())
        .await;
}

/// A message with a terminal error and a message without an id are rejected without a retry.
#[tokio::test]
async fn terminal_failure_is_rejected_at_once() {
    let fixture = Fixture::new().await;
    let broker =
        Broker::with([message("bad", ""), Message::new("tests", "without an id")]).closed();
    let handler = async |_: Tx, _: Message| Err(HandlerError::terminal("never"));
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).handle("terminal", handler);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.retried, summary.rejected), (0, 2));
}

#[tokio::test]
async fn retry_by_a_filter_counts_as_a_failure() {
    struct Again;

    impl Filter for Again {
        fn before_consuming<'a>(&'a self, _: &'a Message) -> BoxFuture<'a, Before> {
            async { Before::Stop(Settlement::RETRY) }.boxed()
        }
    }

    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).counting().closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .idem(Idem::builder().filter(Again).build().unwrap())
        .handle("filtered", crate::fixtures::noting())
        .back_off(SHORT, LONG)
        .max_deliveries(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (0, 1, 1)
    );
    let told = broker.told();
    assert_eq!(
        (told.retried.len(), told.released.len(), told.rejected.len()),
        (1, 0, 1)
    );
}

#[tokio::test]
async fn panic_in_a_handler_rolls_back_and_counts_as_a_failure() {
    let fixture = Fixture::new().await;
    let messages = (0..20).map(|n| message(format!("m-{n}"), ""));
    let broker = Broker::with(messages).closed();
    let panicked = Arc::new(AtomicU32::new(0));
    let times = Arc::clone(&panicked);
    let handler = move |tx: Tx, message: Message| {
        let times = Arc::clone(&times);
        async move {
            note(&tx, &message).await?;
            let is_seventh = message.message_id() == Some("m-7");
            if is_seventh && times.fetch_add(1, Ordering::Relaxed) < 2 {
                panic!("an intermittent bug");
            }
            Ok(vec![])
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("panics", handler)
        .back_off(SHORT, LONG)
        .concurrency(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!((summary.handled, summary.retried), (20, 2));
    let mut done = fixture.done().await;
    done.sort();
    done.dedup();
    assert_eq!(done.len(), 20);
    assert_eq!(fixture.done().await.len(), 20);
    // The server ends the transaction of a closed connection a moment later.
    let client = fixture.pool.get().await.unwrap();
    until("no transaction is open", async || {
        open_transactions(&client).await == 0
    })
    .await;
}

/// A handler that terminates its own backend counts as a failure of its message, and not as an
/// outage of the database.
#[tokio::test]
async fn handler_that_breaks_its_connection_is_a_failure() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("bad", ""), message("good", "")]).closed();
    let handler = async |tx: Tx, message: Message| {
        note(&tx, &message).await?;
        if message.message_id() == Some("bad") {
            tx.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())")
                .await?;
        }
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("breaks", handler)
        .back_off(SHORT, LONG)
        .max_deliveries(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 1, 1)
    );
    assert_eq!(fixture.done().await, ["good"]);
}

#[tokio::test]
async fn panic_of_a_route_counts_as_a_failure() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("bad", ""), message("good", "")]).closed();
    let route = |message: &Message| match message.message_id() {
        Some("bad") => panic!("a bug in a condition"),
        _ => true,
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(
            Selector::matching(route),
            "routes",
            crate::fixtures::noting(),
        )
        .back_off(SHORT, LONG)
        .max_deliveries(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 1, 1)
    );
    assert_eq!(fixture.done().await, ["good"]);
}

/// After a failed settlement, the message is redelivered, and the consumer recognizes it as a
/// duplicate.
#[tokio::test]
async fn message_with_failed_settlement_is_a_duplicate() {
    let fixture = Fixture::new().await;
    let broker = Broker::with((0..10).map(|n| message(format!("m-{n}"), "key")))
        .deaf(4)
        .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("deaf", crate::fixtures::noting())
        .ordered_by_key(true);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (
            summary.handled,
            summary.duplicates,
            summary.failed_settlements
        ),
        (10, 4, 4)
    );
    assert_eq!(fixture.done().await.len(), 10);
}

/// Drops the extension. The consumer locks the tables of idem in another order than DROP EXTENSION
/// does, so PostgreSQL may end either of the two with a deadlock error. This function then repeats
/// the DROP, as docs/operations.md recommends.
async fn drop_extension(client: &Client) {
    while let Err(error) = client.batch_execute("DROP EXTENSION idem").await {
        assert_eq!(
            error.code(),
            Some(&SqlState::T_R_DEADLOCK_DETECTED),
            "{error:?}"
        );
    }
}

/// While the extension is missing, messages are released. No message is rejected.
#[tokio::test]
async fn missing_extension_rejects_no_message() {
    let fixture = Fixture::new().await;
    let client = fixture.pool.get().await.unwrap();
    let broker = Broker::with([message("first", "")]);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("set-up", crate::fixtures::noting())
        .back_off(SHORT, LONG)
        .max_deliveries(2);
    let running = tokio::spawn(consumer.run(pending()));
    until("the first message is acknowledged", async || {
        broker.told().acknowledged.len() == 1
    })
    .await;
    drop_extension(&client).await;
    broker.send(message("m", ""));
    until("the message is released", async || {
        !broker.told().released.is_empty()
    })
    .await;
    client.batch_execute("CREATE EXTENSION idem").await.unwrap();
    drop(broker.clone().closed());
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (2, 0, 0)
    );
    assert_eq!(fixture.done().await, ["first", "m"]);
}

/// Asserts that releases do not count as failures. The first three attempts find an unavailable
/// API, and all later attempts fail. The message is rejected at its third failure.
async fn assert_releases_do_not_count(broker: Broker) {
    let fixture = Fixture::new().await;
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let handler = move |_: Tx, _: Message| {
        let attempt = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            Err(match attempt {
                0..3 => HandlerError::unavailable("the API is down"),
                _ => "not this time".into(),
            })
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("excused", handler)
        .back_off(SHORT, LONG)
        .max_deliveries(3);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (
            summary.handled,
            summary.given_back,
            summary.retried,
            summary.rejected
        ),
        (0, 3, 2, 1)
    );
    assert_eq!(attempts.load(Ordering::Relaxed), 6);
    assert_eq!(
        (broker.told().released.len(), broker.told().retried.len()),
        (3, 2)
    );
}

/// I4: releases do not count as failures, even if the broker counts every delivery.
#[tokio::test]
async fn i4_releases_are_no_failures_if_broker_counts_all() {
    assert_releases_do_not_count(Broker::with([message("m", "")]).counting().closed()).await;
}

/// I4: releases do not count as failures if the broker counts failures only.
#[tokio::test]
async fn i4_releases_are_no_failures_if_broker_omits_them() {
    assert_releases_do_not_count(
        Broker::with([message("m", "")])
            .counting_failures()
            .closed(),
    )
    .await;
}

/// While the server is read-only, messages are released. No message is rejected.
#[tokio::test]
async fn read_only_server_rejects_no_message() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("first", "")]);
    // The setting applies only to new sessions.
    let read_only = |is: &str| {
        fixture.psql(&format!(
            "SET default_transaction_read_only = off;
             SELECT format('ALTER DATABASE %I SET default_transaction_read_only = {is}',
                           current_database()) \\gexec"
        ));
    };
    let end_sessions = || {
        fixture.psql(
            "SET default_transaction_read_only = off;
             SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
             WHERE datname = current_database() AND backend_type = 'client backend'
             AND pid <> pg_backend_pid()",
        );
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("set-up", crate::fixtures::noting())
        .back_off(SHORT, LONG)
        .max_deliveries(2);
    let status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    until("the first message is acknowledged", async || {
        broker.told().acknowledged.len() == 1
    })
    .await;
    read_only("on");
    end_sessions();
    broker.send(message("m", ""));
    until("the status names the error", async || {
        status
            .borrow()
            .paused
            .as_ref()
            .is_some_and(|why| why.starts_with("25006"))
    })
    .await;
    assert!(!broker.told().released.is_empty());
    read_only("off");
    // As after a failover, existing sessions stay read-only, so the consumer has to close them. It
    // cannot close the sessions of PgBouncer, so the test ends them.
    if std::env::var_os("IDEM_TEST_PGBOUNCER").is_some() {
        end_sessions();
    }
    drop(broker.clone().closed());
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (2, 0, 0)
    );
    assert!(status.borrow().is_ready());
}

/// Returns the number of other sessions of this database that are in a transaction.
async fn open_transactions(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND backend_type = 'client backend' AND xact_start IS NOT NULL";
    client.query_typed_one(sql, &[]).await.unwrap().get(0)
}
