//! What is the environment's pauses the consumer and uses up no attempt; what is the message's
//! fails alone.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_client::{Consumer, HandlerError, Selector, Tx};

use tracing::Level;

use crate::{
    broker::Broker,
    ground::{Ground, in_time, message, note, noting, until},
    log::Log,
    support::source_ended,
};

const SHORT: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_millis(16);

/// A table that does not exist yet.
const MISSING: &str = "INSERT INTO later VALUES (1)";
const CREATE: &str = "CREATE TABLE later (n int)";

/// A handler that needs a table for the messages whose id begins so.
fn needing(prefix: &'static str) -> impl idem_client::Handler {
    move |tx: Tx, message: idem_client::Message| async move {
        note(&tx, &message).await?;
        if message
            .message_id()
            .is_some_and(|id| id.starts_with(prefix))
        {
            tx.batch_execute(MISSING).await?;
        }
        Ok(vec![])
    }
}

#[tokio::test]
async fn i4_missing_business_table_uses_up_no_attempt() {
    let ground = Ground::new().await;
    let broker = Broker::with((0..3).map(|n| message(format!("m-{n}"), ""))).closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("environment", needing("m"))
        .back_off(SHORT, LONG)
        .max_deliveries(2);
    let running = tokio::spawn(consumer.run(pending()));
    until("they came again", async || {
        broker.told().released.len() + broker.told().retried.len() >= 6
    })
    .await;
    ground.psql(CREATE);
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (3, 0, 0)
    );
}

/// One message meets such an error at each attempt, and the others do not.
async fn fails_alone(key: &str, change: impl FnOnce(Consumer<Broker>) -> Consumer<Broker>) {
    let ground = Ground::new().await;
    // Where order is kept, what follows under its own key waits for it.
    let its_key = if key.is_empty() { "" } else { "its own" };
    let broker = Broker::with([message("bad", its_key)]);
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("alone", needing("bad"))
        .back_off(SHORT, LONG)
        .max_deliveries(3);
    let running = tokio::spawn(change(consumer).run(pending()));
    let mut sent = 0;
    until("the bad one is rejected", async || {
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

#[tokio::test]
async fn i4_one_message_with_such_an_error_fails_alone() {
    fails_alone("", |consumer| consumer).await;
}

#[tokio::test]
async fn i4_it_fails_alone_also_without_concurrency() {
    fails_alone("", |consumer| consumer.concurrency(1)).await;
}

#[tokio::test]
async fn i4_it_fails_alone_also_where_order_is_kept() {
    fails_alone("key", |consumer| {
        consumer.concurrency(1).ordered_by_key(true)
    })
    .await;
}

#[tokio::test]
async fn a_route_that_is_paused_does_not_stop_the_others() {
    let ground = Ground::new().await;
    let broker = Broker::with((0..5).map(|n| message(format!("broken-{n}"), "")));
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
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
    until("the others are handled", async || {
        ground.done().await.len() == 200
    })
    .await;
    assert_eq!(
        broker.told().rejected,
        [],
        "no attempt of the broken route is used up"
    );
    ground.psql(CREATE);
    let summary = source_ended({
        drop(broker.clone().closed());
        in_time(running).await.unwrap()
    });
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (205, 0, 0)
    );
}

/// A message in its place, whose destination is paused, must not keep the worker from probing.
#[tokio::test]
async fn a_paused_route_does_not_stop_the_others_where_order_is_kept() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("broken-1", "one")]);
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
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
    // It comes during the pause, and waits in its place for the end of the pause.
    broker.send(message("broken-2", "two"));
    for n in 0..50 {
        broker.send(message(format!("m-{n}"), &format!("{n}")));
    }
    until("the others are handled", async || {
        ground.done().await.len() == 50
    })
    .await;
    ground.psql(CREATE);
    drop(broker.clone().closed());
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (52, 0, 0)
    );
}

#[tokio::test]
async fn nothing_is_fetched_before_the_database_serves() {
    let ground = Ground::new().await;
    ground.psql("DROP EXTENSION idem");
    let broker = Broker::with([message("m", "")]).closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone()).handle("preflight", noting());
    let mut status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    in_time(status.wait_for(|status| status.paused.is_some()))
        .await
        .unwrap();
    assert_eq!(broker.told().asked, 0);
    ground.psql("CREATE EXTENSION idem");
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!((summary.handled, summary.given_back), (1, 0));
}

/// A broker that counts each delivery has counted five that ended with a shutdown.
#[tokio::test]
async fn returns_at_shutdown_are_no_failures_of_the_message() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")]).counting();
    let attempts = Arc::new(AtomicU32::new(0));
    for _ in 0..5 {
        let consumer = Consumer::new(ground.pool.clone(), broker.clone())
            .handle("returns", |_: Tx, _: idem_client::Message| async {
                pending().await
            })
            .grace(Duration::ZERO);
        let held = async { until("it is held", async || broker.unsettled() == 1).await };
        let summary = in_time(consumer.run(held)).await.unwrap();
        assert_eq!((summary.given_back, summary.rejected), (1, 0));
    }
    let counted = Arc::clone(&attempts);
    let handler = move |tx: Tx, message: idem_client::Message| {
        let counted = Arc::clone(&counted);
        async move {
            note(&tx, &message).await?;
            match counted.fetch_add(1, Ordering::Relaxed) {
                0 => Err("a bad day".into()),
                _ => Ok(vec![]),
            }
        }
    };
    let consumer = Consumer::new(ground.pool.clone(), broker.clone().closed())
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
async fn status_names_a_paused_destination_and_why() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer =
        Consumer::new(ground.pool.clone(), broker.clone()).handle("status", needing("m"));
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
    ground.psql(CREATE);
    source_ended(in_time(running).await.unwrap());
    assert!(status.borrow().is_ready());
}

/// The database counts attempts under a lease; these are none.
#[tokio::test]
async fn an_unavailable_api_uses_up_no_attempt_under_a_lease() {
    let ground = Ground::new().await;
    ground.psql("SELECT idem_configure_retries('leased', max_attempts => 1)");
    let broker = Broker::with([message("m", "")]).closed();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let handler = move |_: idem_client::lease::Work, _: idem_client::Message| {
        let attempt = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match attempt {
                0..2 => Err(HandlerError::unavailable("the API returned 503")),
                _ => Ok(vec![]),
            }
        }
    };
    let consumer =
        Consumer::new(ground.pool.clone(), broker.clone()).handle_leased("leased", handler);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.given_back, summary.rejected),
        (1, 2, 0)
    );
}

/// The pauses open and close the breaker in turn; a person reads it once.
#[tokio::test]
async fn environment_that_fails_is_a_warning_with_all_causes() {
    let (log, _guard) = Log::keep();
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("logged", needing("m"))
        .max_deliveries(2);
    let running = consumer.run(pending());
    let mending = async {
        until("it came again", async || broker.told().released.len() >= 4).await;
        ground.psql(CREATE);
    };
    let (ended, ()) = tokio::join!(in_time(running), mending);
    source_ended(ended);
    let [warning] = &log.lines(Level::WARN, "")[..] else {
        panic!("one warning, not {:?}", log.lines(Level::WARN, ""));
    };
    assert!(
        warning.contains("logged")
            && warning.contains("42P01: relation")
            && warning.contains("does not exist"),
        "{warning}"
    );
    assert_eq!(log.lines(Level::INFO, "goes on").len(), 1);
}

#[tokio::test]
async fn failure_of_a_message_is_logged_with_causes_and_attempt() {
    let (log, _guard) = Log::keep();
    let ground = Ground::new().await;
    let broker = Broker::with([message("m-1", "")]).closed();
    let handler = async |tx: Tx, _: idem_client::Message| {
        tx.batch_execute("SELECT 1/0").await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("logged", handler)
        .back_off(SHORT, LONG)
        .max_deliveries(3);
    source_ended(in_time(consumer.run(pending())).await);
    let lines = log.lines(Level::WARN, "22012: division by zero");
    let [_, second, last] = &lines[..] else {
        panic!("three lines, not {lines:?}");
    };
    for word in ["m-1", "logged", "attempt=2"] {
        assert!(second.contains(word), "{word}: {second}");
    }
    assert!(last.contains("failed too often"), "{last}");
}

/// A server that has no connection for the role refuses the login; that is no failure of a message.
#[tokio::test]
async fn i4_refused_login_uses_up_no_attempt() {
    let ground = Ground::new().await;
    ground.psql(
        "CREATE ROLE limited LOGIN; GRANT INSERT ON done TO limited; GRANT USAGE ON SEQUENCE done_place_seq TO limited;
         SELECT idem_grant('limited', 'consumer')",
    );
    let broker = Broker::with([message("first", "")]);
    let consumer = Consumer::new(ground.pool_of("limited"), broker.clone())
        .handle("limited", noting())
        .back_off(SHORT, LONG)
        .max_deliveries(1);
    let mut status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    until("it consumes", async || {
        broker.told().acknowledged.len() == 1
    })
    .await;
    ground.psql(
        "ALTER ROLE limited CONNECTION LIMIT 0;
         SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'limited'",
    );
    broker.send(message("m", ""));
    let is_refused = |status: &idem_client::ConsumerStatus| {
        status
            .paused
            .as_ref()
            .is_some_and(|why| why.starts_with("53300"))
    };
    in_time(status.wait_for(is_refused)).await.unwrap();
    ground.psql("ALTER ROLE limited CONNECTION LIMIT -1");
    drop(broker.clone().closed());
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (2, 0, 0)
    );
}
