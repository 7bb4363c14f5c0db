//! A failure of the environment pauses the consumer and uses up no attempt. A failure of one
//! message affects only that message.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use idem_runtime::{Consumer, Handled, HandlerError, Message, Tx, consumer::Selector};
use idem_testkit::{broker::Broker, log::Log, source_ended};
use tracing::Level;

use crate::fixtures::{Fixture, in_time, message, note, noting, until};

const SHORT: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_millis(16);

/// A statement that needs a table that does not exist yet.
const MISSING: &str = "INSERT INTO later VALUES (1)";
const CREATE: &str = "CREATE TABLE later (n int)";

/// Returns a handler that uses the missing table for messages with ids that begin with `prefix`.
fn needing(
    prefix: &'static str,
) -> impl Fn(Tx, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static {
    move |tx, message| {
        async move {
            note(&tx, &message).await?;
            if message
                .message_id()
                .is_some_and(|id| id.starts_with(prefix))
            {
                tx.batch_execute(MISSING).await?;
            }
            Ok(vec![])
        }
        .boxed()
    }
}

/// I4: messages that need a missing table are redelivered until the table exists. No message is
/// rejected.
#[tokio::test]
async fn i4_missing_business_table_uses_no_attempt() {
    let fixture = Fixture::new().await;
    let broker = Broker::with((0..3).map(|n| message(format!("m-{n}"), ""))).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("environment", needing("m"))
        .back_off(SHORT, LONG)
        .max_deliveries(2);
    let running = tokio::spawn(consumer.run(pending()));
    until("the messages are redelivered", async || {
        broker.told().released.len() + broker.told().retried.len() >= 6
    })
    .await;
    fixture.psql(CREATE);
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (3, 0, 0)
    );
}

/// Asserts that a message is rejected when each of its attempts fails with an error of the
/// environment and other messages succeed.
async fn assert_message_fails_alone(
    key: &str,
    change: impl FnOnce(Consumer<Broker>) -> Consumer<Broker>,
) {
    let fixture = Fixture::new().await;
    // The key of the failing message differs from the other keys. In key order, messages with the
    // same key would wait for the failing message.
    let its_key = if key.is_empty() { "" } else { "its own" };
    let broker = Broker::with([message("bad", its_key)]);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("alone", needing("bad"))
        .back_off(SHORT, LONG)
        .max_deliveries(3);
    let running = tokio::spawn(change(consumer).run(pending()));
    let mut sent = 0;
    until("the failing message is rejected", async || {
        broker.send(message(format!("m-{sent}"), key));
        sent += 1;
        !broker.told().rejected.is_empty()
    })
    .await;
    let summary = source_ended({
        drop(broker.clone().closed());
        in_time(running).await.unwrap()
    });
    assert_eq!((summary.handled, summary.rejected), (sent, 1));
    let reason = &broker.told().rejected[0].1;
    assert!(
        reason.contains("failed too often") && reason.contains("relation \"later\" does not exist"),
        "{reason}"
    );
}

/// I4: if only one message fails with an error of the environment, the message uses up its attempts
/// and is rejected.
#[tokio::test]
async fn i4_environment_error_of_one_message_rejects_only_it() {
    assert_message_fails_alone("", |consumer| consumer).await;
}

/// I4: if only one message fails, it is rejected also when the consumer handles one message at a
/// time.
#[tokio::test]
async fn i4_one_failing_message_is_rejected_without_concurrency() {
    assert_message_fails_alone("", |consumer| consumer.concurrency(1)).await;
}

/// I4: if only one message fails, it is rejected also when messages are ordered by key.
#[tokio::test]
async fn i4_one_failing_message_is_rejected_in_key_order() {
    assert_message_fails_alone("key", |consumer| {
        consumer.concurrency(1).ordered_by_key(true)
    })
    .await;
}

#[tokio::test]
async fn paused_route_does_not_stop_other_routes() {
    let fixture = Fixture::new().await;
    let broker = Broker::with((0..5).map(|n| message(format!("broken-{n}"), "")));
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(
            Selector::matching(|message| {
                message
                    .message_id()
                    .is_some_and(|id| id.starts_with("broken"))
            }),
            "broken",
            needing("broken"),
        )
        .handle("works", noting())
        .back_off(SHORT, LONG)
        .concurrency(2)
        .max_deliveries(2);
    let running = tokio::spawn(consumer.run(pending()));
    for n in 0..200 {
        broker.send(message(format!("m-{n}"), ""));
    }
    until("the other messages are handled", async || {
        fixture.done().await.len() == 200
    })
    .await;
    assert_eq!(
        broker.told().rejected,
        [],
        "a message of the broken route was rejected"
    );
    fixture.psql(CREATE);
    let summary = source_ended({
        drop(broker.clone().closed());
        in_time(running).await.unwrap()
    });
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (205, 0, 0)
    );
}

/// I4: a handler that does not restore the role or the search_path is no failure of the
/// environment: its message is rejected, and the consumer pauses no destination.
#[tokio::test]
async fn i4_changed_role_rejects_message_and_pauses_nothing() {
    let fixture = Fixture::new().await;
    fixture.psql(
        "DO $$ BEGIN CREATE ROLE tenant; EXCEPTION WHEN duplicate_object THEN END $$;
         GRANT INSERT ON done TO tenant; GRANT USAGE ON SEQUENCE done_place_seq TO tenant",
    );
    let broker = Broker::with(
        [
            "SET LOCAL ROLE tenant",
            "SET LOCAL search_path = pg_catalog",
        ]
        .map(|change| message(format!("changing-{change}"), "").with_type(change)),
    );
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(
            Selector::matching(|message| message.message_type().is_some()),
            "changing",
            |tx: Tx, message: Message| async move {
                note(&tx, &message).await?;
                tx.batch_execute(message.message_type().unwrap()).await?;
                Ok(vec![])
            },
        )
        .handle("works", noting())
        .concurrency(2);
    let running = tokio::spawn(consumer.run(pending()));
    for n in 0..20 {
        broker.send(message(format!("m-{n}"), ""));
    }
    until("all messages are settled", async || {
        fixture.done().await.len() == 20 && broker.told().rejected.len() == 2
    })
    .await;
    for (_, reason) in broker.told().rejected {
        assert!(reason.contains("restore both"), "{reason}");
    }
    let summary = source_ended({
        drop(broker.clone().closed());
        in_time(running).await.unwrap()
    });
    let returned = (summary.retried, summary.given_back);
    assert_eq!(
        (summary.handled, summary.rejected, returned),
        (20, 2, (0, 0))
    );
}

/// In key order, a message of a paused destination waits in the consumer until the pause ends. A
/// worker must still probe the destination, and messages of other destinations must still be
/// handled.
#[tokio::test]
async fn paused_route_does_not_stop_other_routes_in_key_order() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("broken-1", "one")]);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(
            Selector::matching(|message| {
                message
                    .message_id()
                    .is_some_and(|id| id.starts_with("broken"))
            }),
            "broken",
            needing("broken"),
        )
        .handle("works", noting())
        .concurrency(3)
        .ordered_by_key(true);
    let mut status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    in_time(status.wait_for(|status| !status.paused_destinations.is_empty()))
        .await
        .unwrap();
    // This message is delivered during the pause, and waits in the consumer until the pause ends.
    broker.send(message("broken-2", "two"));
    for n in 0..50 {
        broker.send(message(format!("m-{n}"), &format!("{n}")));
    }
    until("the other messages are handled", async || {
        fixture.done().await.len() == 50
    })
    .await;
    fixture.psql(CREATE);
    drop(broker.clone().closed());
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (52, 0, 0)
    );
}

#[tokio::test]
async fn nothing_is_fetched_before_the_database_is_ready() {
    let fixture = Fixture::new().await;
    fixture.psql("DROP EXTENSION idem");
    let broker = Broker::with([message("m", "")]).closed();
    let consumer =
        Consumer::new(fixture.pool.clone(), broker.clone()).handle("preflight", noting());
    let mut status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    in_time(status.wait_for(|status| status.paused.is_some()))
        .await
        .unwrap();
    assert_eq!(broker.told().asked, 0);
    fixture.psql("CREATE EXTENSION idem");
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!((summary.handled, summary.given_back), (1, 0));
}

/// A broker that counts each delivery has counted five deliveries that ended with a stop of the
/// consumer. These deliveries do not count as failures.
#[tokio::test]
async fn releases_at_a_stop_do_not_count_as_failures() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).counting();
    let attempts = Arc::new(AtomicU32::new(0));
    for _ in 0..5 {
        let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
            .handle("returns", |_: Tx, _: Message| async { pending().await })
            .grace(Duration::ZERO);
        let held = async { until("the message is held", async || broker.unsettled() == 1).await };
        let summary = in_time(consumer.run(held)).await.unwrap();
        assert_eq!((summary.given_back, summary.rejected), (1, 0));
    }
    let counted = Arc::clone(&attempts);
    let handler = move |tx: Tx, message: Message| {
        let counted = Arc::clone(&counted);
        async move {
            note(&tx, &message).await?;
            match counted.fetch_add(1, Ordering::Relaxed) {
                0 => Err("not this time".into()),
                _ => Ok(vec![]),
            }
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone().closed())
        .handle("returns", handler)
        .back_off(SHORT, LONG)
        .max_deliveries(5);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 1, 0)
    );
}

#[tokio::test]
async fn status_names_a_paused_destination_and_its_reason() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer =
        Consumer::new(fixture.pool.clone(), broker.clone()).handle("status", needing("m"));
    let mut status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    let paused = in_time(status.wait_for(|status| !status.paused_destinations.is_empty()))
        .await
        .unwrap()
        .clone();
    assert_eq!(paused.paused, None);
    let why = &paused.paused_destinations["status"];
    assert!(
        why.contains("42P01: relation \"later\" does not exist"),
        "{why}"
    );
    fixture.psql(CREATE);
    source_ended(in_time(running).await.unwrap());
    assert!(status.borrow().is_ready());
}

/// Under a lease, the database counts attempts. An attempt that ends because an API is unavailable
/// is not counted.
#[tokio::test]
async fn unavailable_api_uses_no_attempt_under_a_lease() {
    let fixture = Fixture::new().await;
    fixture.psql("SELECT idem_configure_retries('leased', max_attempts => 1)");
    let broker = Broker::with([message("m", "")]).closed();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let handler = move |_: idem_runtime::lease::LeaseContext, _: Message| {
        let attempt = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match attempt {
                0..2 => Err(HandlerError::unavailable("the API returned 503")),
                _ => Ok(vec![]),
            }
        }
    };
    let consumer =
        Consumer::new(fixture.pool.clone(), broker.clone()).handle_leased("leased", handler);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.given_back, summary.rejected),
        (1, 2, 0)
    );
}

/// Repeated pauses of a destination open and close its circuit breaker. The consumer logs only one
/// warning.
#[tokio::test]
async fn failing_environment_logs_one_warning_with_all_causes() {
    let (log, _guard) = Log::keep();
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("logged", needing("m"))
        .max_deliveries(2);
    let running = consumer.run(pending());
    let create_table = async {
        until("the message is redelivered", async || {
            broker.told().released.len() >= 4
        })
        .await;
        fixture.psql(CREATE);
    };
    let (ended, ()) = tokio::join!(in_time(running), create_table);
    source_ended(ended);
    let [warning] = &log.lines(Level::WARN, "")[..] else {
        panic!("not one warning: {:?}", log.lines(Level::WARN, ""));
    };
    assert!(
        warning.contains("logged")
            && warning.contains("42P01: relation")
            && warning.contains("does not exist"),
        "{warning}"
    );
    assert_eq!(log.lines(Level::INFO, "is resumed").len(), 1);
}

#[tokio::test]
async fn failure_of_a_message_is_logged_with_causes_and_attempt() {
    let (log, _guard) = Log::keep();
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m-1", "")]).closed();
    let handler = async |tx: Tx, _: Message| {
        tx.batch_execute("SELECT 1/0").await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("logged", handler)
        .back_off(SHORT, LONG)
        .max_deliveries(3);
    source_ended(in_time(consumer.run(pending())).await);
    let lines = log.lines(Level::WARN, "22012: division by zero");
    let [_, second, last] = &lines[..] else {
        panic!("not three lines: {lines:?}");
    };
    for word in ["m-1", "logged", "attempt=2"] {
        assert!(second.contains(word), "{word}: {second}");
    }
    assert!(last.contains("failed too often"), "{last}");
}

/// If the server rejects a login because of the connection limit of the role, this is not a failure
/// of a message.
#[tokio::test]
async fn i4_rejected_login_uses_no_attempt() {
    let fixture = Fixture::new().await;
    fixture.psql(
        "CREATE ROLE limited LOGIN; GRANT INSERT ON done TO limited;
         GRANT USAGE ON SEQUENCE done_place_seq TO limited;
         SELECT idem_grant('limited', 'consumer')",
    );
    let broker = Broker::with([message("first", "")]);
    let consumer = Consumer::new(fixture.pool_of("limited"), broker.clone())
        .handle("limited", noting())
        .back_off(SHORT, LONG)
        .max_deliveries(1);
    let mut status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    until("the first message is acknowledged", async || {
        broker.told().acknowledged.len() == 1
    })
    .await;
    fixture.psql(
        "ALTER ROLE limited CONNECTION LIMIT 0;
         SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'limited'",
    );
    broker.send(message("m", ""));
    let is_rejected = |status: &idem_runtime::consumer::ConsumerStatus| {
        status
            .paused
            .as_ref()
            .is_some_and(|why| why.starts_with("53300"))
    };
    in_time(status.wait_for(is_rejected)).await.unwrap();
    fixture.psql("ALTER ROLE limited CONNECTION LIMIT -1");
    drop(broker.clone().closed());
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (2, 0, 0)
    );
}
