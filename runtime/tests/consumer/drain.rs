//! A stop loses nothing: messages in their handlers are finished, and waiting messages are
//! released.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use futures_util::poll;
use idem_runtime::{Consumer, Handled, HandlerError, Message, Tx, consumer::Batches, terminated};
use idem_testkit::{broker::Broker, source_ended};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::sleep,
};

use crate::fixtures::{Fixture, in_time, message, note, noting, until};

const MESSAGES: usize = 100;

fn messages(key: &str) -> impl Iterator<Item = Message> {
    (0..MESSAGES).map(move |n| message(format!("m-{n}"), key))
}

/// A handler that waits inside its transaction until the test lets it continue.
struct Barrier {
    arrived: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Barrier {
    fn new() -> Self {
        Self {
            arrived: Arc::new(Semaphore::new(0)),
            go: Arc::new(Semaphore::new(0)),
        }
    }

    fn handler(
        &self,
    ) -> impl Fn(Tx, Message) -> futures_util::future::BoxFuture<'static, idem_runtime::Handled>
    + Send
    + Sync
    + 'static {
        let (arrived, go) = (Arc::clone(&self.arrived), Arc::clone(&self.go));
        move |tx, message| {
            let (arrived, go) = (Arc::clone(&arrived), Arc::clone(&go));
            Box::pin(async move {
                note(&tx, &message).await?;
                arrived.add_permits(1);
                go.acquire().await?.forget();
                Ok(vec![])
            })
        }
    }

    async fn wait_for_arrivals(&self, count: u32) {
        in_time(self.arrived.acquire_many(count))
            .await
            .unwrap()
            .forget();
    }
}

/// Handles the remaining messages with another consumer, and asserts that each message took effect
/// once.
async fn assert_rest_is_handled_once(fixture: &Fixture, broker: Broker) {
    let rest =
        Consumer::new(fixture.pool.clone(), broker.clone().closed()).handle("drain", noting());
    let summary = source_ended(in_time(rest.run(pending())).await);
    assert_eq!(summary.duplicates, 0);
    let mut done = fixture.done().await;
    assert_eq!(done.len(), MESSAGES);
    done.sort();
    done.dedup();
    assert_eq!(done.len(), MESSAGES);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_finishes_running_handlers_and_fetches_no_more() {
    let fixture = Fixture::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4);
    let running = tokio::spawn(consumer.run(async { stopped.await.unwrap() }));
    barrier.wait_for_arrivals(4).await;
    assert_eq!(fixture.done().await.len(), 0);
    stop.send(()).unwrap();
    barrier.go.add_permits(MESSAGES);
    let summary = in_time(running).await.unwrap().unwrap();

    // A handler may have ended before the consumer noticed the stop. The consumer may then have
    // started the handler of another message.
    let handled = summary.handled as usize;
    assert!((4..MESSAGES).contains(&handled), "{summary:?}");
    assert_eq!(summary.given_back, 0);
    assert_eq!(broker.told().acknowledged.len(), handled);
    assert_eq!(
        (broker.unsettled(), broker.waiting()),
        (0, MESSAGES - handled)
    );
    assert_rest_is_handled_once(&fixture, broker).await;
}

#[tokio::test]
async fn stop_releases_messages_that_wait_for_their_key_in_order() {
    let fixture = Fixture::new().await;
    let (broker, barrier) = (Broker::with(messages("one")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let (notice, noticed) = oneshot::channel::<()>();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4)
        .ordered_by_key(true);
    let running = tokio::spawn(consumer.run(async {
        stopped.await.unwrap();
        notice.send(()).unwrap();
    }));
    barrier.wait_for_arrivals(1).await;
    until("the successors are fetched", async || {
        broker.unsettled() == 4
    })
    .await;
    stop.send(()).unwrap();
    // The test has one thread, so this line runs only after the consumer has stopped fetching.
    in_time(noticed).await.unwrap();
    barrier.go.add_permits(1);
    let summary = in_time(running).await.unwrap().unwrap();

    let given_back: Vec<String> = broker
        .told()
        .released
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!((summary.handled, summary.given_back), (1, 3));
    assert_eq!(given_back, ["m-1", "m-2", "m-3"]);
    assert_eq!(
        (broker.unsettled(), fixture.done().await),
        (0, vec!["m-0".to_owned()])
    );
}

/// A message has failed and waits in the consumer for its next attempt. At a stop, the consumer
/// settles it with a retry and not with a release, because some brokers count only retries as
/// failures.
#[tokio::test]
async fn stop_retries_a_message_that_failed_in_place() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("failed", "key"), message("waiting", "key")]);
    let (fail, mut failed) = mpsc::channel(1);
    let handler = move |_: Tx, _: Message| {
        let fail = fail.clone();
        async move {
            let _ = fail.try_send(());
            Err("not today".into())
        }
    };
    let hour = Duration::from_secs(3600);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", handler)
        .back_off(hour, hour)
        .ordered_by_key(true);
    let has_failed = async {
        failed.recv().await.unwrap();
        until("the successor is fetched", async || broker.unsettled() == 2).await;
    };
    let summary = in_time(consumer.run(has_failed)).await.unwrap();
    assert_eq!((summary.retried, summary.given_back), (1, 2));
    let ids =
        |told: Vec<(String, Duration)>| told.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(broker.told().retried), ["failed"]);
    assert_eq!(ids(broker.told().released), ["waiting"]);
}

/// A handler that does not end within the grace period is rolled back, and its message is released.
#[tokio::test(flavor = "multi_thread")]
async fn handler_beyond_the_grace_period_is_rolled_back() {
    let fixture = Fixture::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4)
        .grace(Duration::from_millis(50));
    let running = tokio::spawn(consumer.run(async { stopped.await.unwrap() }));
    barrier.wait_for_arrivals(4).await;
    stop.send(()).unwrap();
    let summary = in_time(running).await.unwrap().unwrap();

    assert_eq!((summary.handled, summary.given_back), (0, 4));
    assert_eq!(broker.told().released.len(), 4);
    assert_eq!((broker.unsettled(), broker.waiting()), (0, MESSAGES));
    assert_rest_is_handled_once(&fixture, broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_finishes_or_releases_whole_batches() {
    let fixture = Fixture::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .batches(Batches::new(10).linger(Duration::from_secs(3600)))
        .concurrency(3);
    let running = tokio::spawn(consumer.run(async { stopped.await.unwrap() }));
    barrier.wait_for_arrivals(3).await;
    until("three batches are held", async || broker.unsettled() == 30).await;
    stop.send(()).unwrap();
    barrier.go.add_permits(MESSAGES);
    let summary = in_time(running).await.unwrap().unwrap();

    let handled = summary.handled as usize;
    assert!((30..MESSAGES).contains(&handled), "{summary:?}");
    assert_eq!(handled % 10, 0);
    assert_eq!(
        (broker.unsettled(), broker.waiting()),
        (0, MESSAGES - handled)
    );
    assert_rest_is_handled_once(&fixture, broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_consumer_loses_nothing() {
    let fixture = Fixture::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4);
    let mut running = Box::pin(consumer.run(pending()));
    tokio::select! {
        _ = &mut running => unreachable!("the consumer ended without a stop"),
        () = barrier.wait_for_arrivals(4) => {}
    }
    drop(running);
    until("the receipts are dropped", async || {
        broker.told().dropped.len() == 4
    })
    .await;
    assert_rest_is_handled_once(&fixture, broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_broker_does_not_block_a_stop() {
    let fixture = Fixture::new().await;
    let broker = Broker::with(messages("")).mute();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", noting())
        .concurrency(4)
        .grace(Duration::from_millis(50));
    let four_done = async {
        until("four messages are handled", async || {
            fixture.done().await.len() == 4
        })
        .await
    };
    let summary = in_time(consumer.run(four_done)).await.unwrap();
    assert_eq!((summary.handled, summary.failed_settlements), (4, 4));
    assert_eq!(broker.told().dropped.len(), 4);
}

/// A paused consumer notices a stop while it releases messages, although the broker does not
/// confirm the release of one message.
#[tokio::test(flavor = "multi_thread")]
async fn stop_is_noticed_during_an_unconfirmed_release() {
    let fixture = Fixture::new().await;
    let broker = Broker::with(["m-0", "m-1", "m-2"].map(|id| message(id, ""))).silent_about("m-2");
    let seen = broker.clone();
    let handler = move |_: Tx, _: Message| {
        let seen = seen.clone();
        async move {
            // Wait until the other worker has collected its batch.
            while seen.unsettled() < 3 {
                sleep(Duration::from_millis(5)).await;
            }
            Err(HandlerError::unavailable("its API is down"))
        }
    };
    let hour = Duration::from_secs(3600);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", handler)
        .batches(Batches::new(2).linger(hour))
        .concurrency(2)
        .grace(hour);
    let is_ignored = until("the third message is released", async || {
        broker.told().ignored == ["m-2"]
    });
    let summary = in_time(consumer.run(is_ignored)).await.unwrap();
    assert_eq!((summary.handled, summary.failed_settlements), (0, 1));
    assert_eq!(broker.told().dropped, ["m-2"]);
}

/// At a stop, messages with unconfirmed releases are counted as failed settlements. The first
/// message is in its handler, and the later messages of its key wait for it.
#[tokio::test]
async fn unconfirmed_releases_at_a_stop_are_counted() {
    let fixture = Fixture::new().await;
    let broker =
        Broker::with(["m-0", "m-1", "m-2", "m-3"].map(|id| message(id, "key"))).silent_about("m-1");
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", |_: Tx, _: Message| pending::<Handled>())
        .ordered_by_key(true)
        .grace(Duration::from_millis(50));
    let are_fetched = until("all messages are fetched", async || broker.unsettled() == 4);
    let summary = in_time(consumer.run(are_fetched)).await.unwrap();

    // The release of one message is not confirmed. The consumer then drops the receipts of this
    // message and of the later messages of its key.
    let told = broker.told();
    assert_eq!(
        (told.released.len(), told.dropped),
        (1, ["m-1", "m-2", "m-3"].map(str::to_owned).to_vec())
    );
    // An unconfirmed release counts as given back and as a failed settlement.
    assert_eq!((summary.given_back, summary.failed_settlements), (2, 3));
}

/// SIGTERM and SIGINT complete the future of `terminated`.
#[tokio::test]
async fn termination_signal_completes_terminated() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut terminated = pin!(terminated());
        // The first poll installs the signal handler. After it, a signal no longer ends the
        // process.
        assert!(poll!(terminated.as_mut()).is_pending());
        kill(Pid::this(), signal).unwrap();
        in_time(terminated).await;
    }
}

/// When `run` returns after the grace period, the server has ended the statements of interrupted
/// handlers. Behind a pooler, the server ends them later.
#[tokio::test(flavor = "multi_thread")]
async fn statement_of_a_cut_handler_ends_with_the_consumer() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m-1", "")]);
    let handler = async |tx: Tx, _: Message| {
        tx.batch_execute("SELECT pg_sleep(600)").await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("drain", handler)
        .grace(Duration::ZERO);
    let observer = fixture.pool.get().await.unwrap();
    let sleeping = async || -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event = 'PgSleep'";
        observer.query_typed_one(sql, &[]).await.unwrap().get(0)
    };
    let statement_runs = until("the handler's statement runs", async || {
        sleeping().await == 1
    });
    in_time(consumer.run(statement_runs)).await.unwrap();
    if fixture.database.pooler().is_some() {
        return until("the server has ended the statement", async || {
            sleeping().await == 0
        })
        .await;
    }
    assert_eq!(
        sleeping().await,
        0,
        "the statement still runs at the server"
    );
}
