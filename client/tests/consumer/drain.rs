//! A shutdown loses nothing: what is being processed is finished, what waits is given back.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use futures_util::poll;
use idem_client::{Batches, Consumer, Handled, HandlerError, Message, Tx, terminated};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::sleep,
};

use crate::{
    broker::Broker,
    ground::{Ground, in_time, message, note, noting, until},
    support::source_ended,
};

const MESSAGES: usize = 100;

fn messages(key: &str) -> impl Iterator<Item = Message> {
    (0..MESSAGES).map(move |n| message(format!("m-{n}"), key))
}

/// Handlers that stand in the middle of their work until they are let go.
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
    ) -> impl Fn(Tx, Message) -> futures_util::future::BoxFuture<'static, idem_client::Handled>
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

    async fn have_arrived(&self, count: u32) {
        in_time(self.arrived.acquire_many(count))
            .await
            .unwrap()
            .forget();
    }
}

/// Another consumer does the rest: everything has taken effect once.
async fn the_rest_is_handled_once(ground: &Ground, broker: Broker) {
    let rest =
        Consumer::new(ground.pool.clone(), broker.clone().closed()).handle("drain", noting());
    let summary = source_ended(in_time(rest.run(pending())).await);
    assert_eq!(summary.duplicates, 0);
    let mut done = ground.done().await;
    assert_eq!(done.len(), MESSAGES);
    done.sort();
    done.dedup();
    assert_eq!(done.len(), MESSAGES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_what_is_in_flight_and_fetches_no_more() {
    let ground = Ground::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4);
    let running = tokio::spawn(consumer.run(async { stopped.await.unwrap() }));
    barrier.have_arrived(4).await;
    assert_eq!(ground.done().await.len(), 0);
    stop.send(()).unwrap();
    barrier.go.add_permits(MESSAGES);
    let summary = in_time(running).await.unwrap().unwrap();

    // A handler that was let go before the consumer noticed may have been followed by another.
    let handled = summary.handled as usize;
    assert!((4..MESSAGES).contains(&handled), "{summary:?}");
    assert_eq!(summary.given_back, 0);
    assert_eq!(broker.told().acknowledged.len(), handled);
    assert_eq!(
        (broker.unsettled(), broker.waiting()),
        (0, MESSAGES - handled)
    );
    the_rest_is_handled_once(&ground, broker).await;
}

#[tokio::test]
async fn a_shutdown_gives_back_what_waits_for_another_of_its_key_in_its_order() {
    let ground = Ground::new().await;
    let (broker, barrier) = (Broker::with(messages("one")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let (notice, noticed) = oneshot::channel::<()>();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4)
        .ordered_by_key(true);
    let running = tokio::spawn(consumer.run(async {
        stopped.await.unwrap();
        notice.send(()).unwrap();
    }));
    barrier.have_arrived(1).await;
    until("its successors are fetched", async || {
        broker.unsettled() == 4
    })
    .await;
    stop.send(()).unwrap();
    // On one thread: who hears this runs after the consumer has stopped to fetch.
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
        (broker.unsettled(), ground.done().await),
        (0, vec!["m-0".to_owned()])
    );
}

/// A broker that counts failures only learns of this one.
#[tokio::test]
async fn a_message_that_failed_in_place_is_a_failure_at_its_broker() {
    let ground = Ground::new().await;
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
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", handler)
        .back_off(hour, hour)
        .ordered_by_key(true);
    let has_failed = async {
        failed.recv().await.unwrap();
        until("its successor is fetched", async || broker.unsettled() == 2).await;
    };
    let summary = in_time(consumer.run(has_failed)).await.unwrap();
    assert_eq!((summary.retried, summary.given_back), (1, 2));
    let ids =
        |told: Vec<(String, Duration)>| told.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(broker.told().retried), ["failed"]);
    assert_eq!(ids(broker.told().released), ["waiting"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_within_its_grace_is_rolled_back_and_given_back() {
    let ground = Ground::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4)
        .grace(Duration::from_millis(50));
    let running = tokio::spawn(consumer.run(async { stopped.await.unwrap() }));
    barrier.have_arrived(4).await;
    stop.send(()).unwrap();
    let summary = in_time(running).await.unwrap().unwrap();

    assert_eq!((summary.handled, summary.given_back), (0, 4));
    assert_eq!(broker.told().released.len(), 4);
    assert_eq!((broker.unsettled(), broker.waiting()), (0, MESSAGES));
    the_rest_is_handled_once(&ground, broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_gives_back_or_finishes_whole_batches() {
    let ground = Ground::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .batches(Batches {
            max: 10,
            linger: Duration::from_secs(3600),
        })
        .concurrency(3);
    let running = tokio::spawn(consumer.run(async { stopped.await.unwrap() }));
    barrier.have_arrived(3).await;
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
    the_rest_is_handled_once(&ground, broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_dropped_in_the_middle_loses_nothing() {
    let ground = Ground::new().await;
    let (broker, barrier) = (Broker::with(messages("")), Barrier::new());
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", barrier.handler())
        .concurrency(4);
    let mut running = Box::pin(consumer.run(pending()));
    tokio::select! {
        _ = &mut running => unreachable!("nobody stops it"),
        () = barrier.have_arrived(4) => {}
    }
    drop(running);
    until("the receipts are dropped", async || {
        broker.told().dropped.len() == 4
    })
    .await;
    the_rest_is_handled_once(&ground, broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_does_not_answer_does_not_hold_up_a_shutdown_for_ever() {
    let ground = Ground::new().await;
    let broker = Broker::with(messages("")).mute();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", noting())
        .concurrency(4)
        .grace(Duration::from_millis(50));
    let four_done = async { until("four are done", async || ground.done().await.len() == 4).await };
    let summary = in_time(consumer.run(four_done)).await.unwrap();
    assert_eq!((summary.handled, summary.failed_settlements), (4, 4));
    assert_eq!(broker.told().dropped.len(), 4);
}

/// Goal: a paused consumer that gives messages back notices a stop. The broker is silent about one.
#[tokio::test(flavor = "multi_thread")]
async fn stop_is_noticed_while_a_silent_broker_takes_messages_back() {
    let ground = Ground::new().await;
    let broker = Broker::with(["m-0", "m-1", "m-2"].map(|id| message(id, ""))).silent_about("m-2");
    let seen = broker.clone();
    let handler = move |_: Tx, _: Message| {
        let seen = seen.clone();
        async move {
            // Meanwhile the other worker collects a batch.
            while seen.unsettled() < 3 {
                sleep(Duration::from_millis(5)).await;
            }
            Err(HandlerError::unavailable("its API is down"))
        }
    };
    let hour = Duration::from_secs(3600);
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", handler)
        .batches(Batches {
            max: 2,
            linger: hour,
        })
        .concurrency(2)
        .grace(hour);
    let is_ignored = until("the third one is given back", async || {
        broker.told().ignored == ["m-2"]
    });
    let summary = in_time(consumer.run(is_ignored)).await.unwrap();
    assert_eq!((summary.handled, summary.failed_settlements), (0, 1));
    assert_eq!(broker.told().dropped, ["m-2"]);
}

/// The first message is in its handler, and the others wait for it.
#[tokio::test]
async fn messages_that_a_silent_broker_does_not_take_back_are_counted() {
    let ground = Ground::new().await;
    let broker =
        Broker::with(["m-0", "m-1", "m-2", "m-3"].map(|id| message(id, "key"))).silent_about("m-1");
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", |_: Tx, _: Message| pending::<Handled>())
        .ordered_by_key(true)
        .grace(Duration::from_millis(50));
    let are_fetched = until("all are fetched", async || broker.unsettled() == 4);
    let summary = in_time(consumer.run(are_fetched)).await.unwrap();

    // Its successors stay behind it.
    let told = broker.told();
    assert_eq!(
        (told.released.len(), told.dropped),
        (1, ["m-1", "m-2", "m-3"].map(str::to_owned).to_vec())
    );
    // What was sent without a confirmation counts as both.
    assert_eq!((summary.given_back, summary.failed_settlements), (2, 3));
}

#[tokio::test]
async fn a_process_that_is_asked_to_end_hears_it() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut asked = pin!(terminated());
        // From its first poll on a signal does not end the process any more.
        assert!(poll!(asked.as_mut()).is_pending());
        kill(Pid::this(), signal).unwrap();
        in_time(asked).await;
    }
}

/// Goal: when `run` has returned after its grace, the server has ended what the handlers executed;
/// through a pooler, it does so later.
#[tokio::test(flavor = "multi_thread")]
async fn statement_of_a_handler_that_is_cut_ends_with_the_consumer() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m-1", "")]);
    let handler = async |tx: Tx, _: Message| {
        tx.batch_execute("SELECT pg_sleep(600)").await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("drain", handler)
        .grace(Duration::ZERO);
    let observer = ground.pool.get().await.unwrap();
    let sleeping = async || -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event = 'PgSleep'";
        observer.query_typed_one(sql, &[]).await.unwrap().get(0)
    };
    let it_runs = until("the handler's statement runs", async || {
        sleeping().await == 1
    });
    in_time(consumer.run(it_runs)).await.unwrap();
    if ground.is_proxied() {
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
