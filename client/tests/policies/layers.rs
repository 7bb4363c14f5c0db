//! idem in pipelines of tower's own layers.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_client::{
    Effect, ErrorKind, Handler, HandlerError, Idem, IdemLayer, Message, Processed, Protected,
    Settlement, TerminalError, service_handler,
};
use tokio::sync::{Notify, mpsc};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::{
    ground::{Ground, is_duplicate, is_new, message, note},
    support::{DEADLINE, in_time, until},
};

fn layer(ground: &Ground) -> IdemLayer {
    IdemLayer::new(Idem::new(), ground.pool.clone())
}

async fn noting(Protected { tx, message }: Protected) -> Result<Vec<Effect>, HandlerError> {
    note(tx, message).await
}

/// Writes, says that it has, and never answers.
fn stuck(
    entered: mpsc::Sender<()>,
) -> impl Fn(Protected) -> futures_util::future::BoxFuture<'static, Result<Vec<Effect>, BoxError>> + Clone
{
    move |Protected { tx, message }| {
        let entered = entered.clone();
        Box::pin(async move {
            tx.query_typed("INSERT INTO fact (topic) VALUES ('stuck')", &[])
                .await?;
            entered.send(()).await?;
            let _ = message;
            std::future::pending().await
        })
    }
}

/// Nothing was left behind: no fact, no claim, no open transaction, and the message is free.
async fn is_as_before(ground: &Ground) {
    until("no transaction is open", async || {
        ground
            .count("pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()")
            .await
            == 0
    })
    .await;
    assert_eq!((ground.facts().await, ground.claims().await), (0, 0));
    assert!(is_new(&ground.process(&Idem::new(), &message("a")).await));
}

#[tokio::test]
async fn a_service_of_messages_lets_each_take_effect_once() {
    let ground = Ground::new().await;
    let mut service = ServiceBuilder::new()
        .layer(layer(&ground))
        .service_fn(noting);
    let first = service.ready().await.unwrap().call(message("a")).await;
    assert!(is_new(&first));
    let again = service.ready().await.unwrap().call(message("a")).await;
    assert!(is_duplicate(&again));
    assert_eq!((ground.facts().await, ground.claims().await), (1, 1));
}

#[tokio::test]
async fn a_timeout_above_commits_nothing() {
    let ground = Ground::new().await;
    let (entered, mut is_in) = mpsc::channel(1);
    let service = ServiceBuilder::new()
        .timeout(Duration::from_millis(500))
        .layer(layer(&ground))
        .service(service_fn(stuck(entered)));
    // Until it was inside its handler when the time was up.
    let error = loop {
        let error = service.clone().oneshot(message("a")).await.unwrap_err();
        if is_in.try_recv().is_ok() {
            break error;
        }
    };
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
    is_as_before(&ground).await;
}

#[tokio::test]
async fn a_timeout_below_is_an_error_of_the_handler() {
    let ground = Ground::new().await;
    let (entered, mut is_in) = mpsc::channel(1);
    let service = ServiceBuilder::new()
        .layer(layer(&ground))
        .timeout(Duration::from_millis(500))
        .service(service_fn(stuck(entered)));
    let error = loop {
        let error = service.clone().oneshot(message("a")).await.unwrap_err();
        if is_in.try_recv().is_ok() {
            break error;
        }
    };
    assert!(matches!(error, idem_client::Error::Handler(_)), "{error:?}");
    assert_eq!(error.settlement(), Settlement::RETRY);
    is_as_before(&ground).await;
}

/// A handler that says how many are in it, and leaves when it is told.
#[derive(Clone, Default)]
struct Room {
    inside: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    leave: Arc<Notify>,
}

impl Room {
    async fn visit(
        self,
        Protected { tx, message }: Protected,
    ) -> Result<Vec<Effect>, HandlerError> {
        let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.leave.notified().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        note(tx, message).await
    }
}

#[tokio::test]
async fn a_limit_below_is_kept_and_no_message_is_lost() {
    let ground = Ground::new().await;
    // The first claim of a destination holds up all others, so it comes before.
    assert!(is_new(
        &ground.process(&Idem::new(), &message("first")).await
    ));
    let room = Room::default();
    let visited = room.clone();
    let service = ServiceBuilder::new()
        .layer(layer(&ground))
        .concurrency_limit(2)
        .service(service_fn(move |request| visited.clone().visit(request)));
    let messages = (0..8).map(|n| message(&format!("m-{n}")));
    let running: Vec<_> = messages
        .map(|message| tokio::spawn(service.clone().oneshot(message)))
        .collect();
    until("the room is full", async || {
        room.inside.load(Ordering::SeqCst) == 2
    })
    .await;
    for task in running {
        let leaving = tokio::spawn({
            let room = room.clone();
            async move {
                loop {
                    room.leave.notify_one();
                    tokio::task::yield_now().await;
                }
            }
        });
        let processed = in_time(task).await.unwrap();
        leaving.abort();
        assert!(is_new(&processed), "{processed:?}");
    }
    assert_eq!(ground.facts().await, 9);
    assert_eq!(room.most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_duplicate_gives_its_place_back_without_a_call() {
    let ground = Ground::new().await;
    let service = ServiceBuilder::new()
        .layer(layer(&ground))
        .concurrency_limit(1)
        .service(service_fn(noting));
    for n in 0..3 {
        let processed = in_time(service.clone().oneshot(message("a"))).await;
        assert_eq!(is_new(&processed), n == 0, "{processed:?}");
    }
}

#[tokio::test]
async fn a_service_that_is_not_ready_is_not_called() {
    let ground = Ground::new().await;
    let (entered, mut is_in) = mpsc::channel(1);
    let mut service = ServiceBuilder::new()
        .layer(layer(&ground))
        .concurrency_limit(1)
        .service(service_fn(stuck(entered)));
    let first = tokio::spawn(service.ready().await.unwrap().call(message("a")));
    in_time(is_in.recv()).await.unwrap();
    assert!(futures_util::poll!(std::pin::pin!(service.ready())).is_pending());
    first.abort();
    assert!(in_time(service.ready()).await.is_ok());
}

const LOSE: &str =
    "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = 'serialization_failure'; END $$";

/// Loses a conflict the first time that it sees a message, and does its work the second time.
#[derive(Clone, Default)]
struct Unlucky {
    seen: Arc<Mutex<HashSet<String>>>,
}

impl Unlucky {
    async fn try_it(
        self,
        Protected { tx, message }: Protected,
    ) -> Result<Vec<Effect>, HandlerError> {
        let is_first = self
            .seen
            .lock()
            .unwrap()
            .insert(message.message_id().unwrap_or_default().to_owned());
        if is_first {
            tx.batch_execute(LOSE).await?;
        }
        note(tx, message).await
    }
}

#[tokio::test]
async fn a_lost_conflict_is_tried_again_through_a_limit() {
    let ground = Ground::new().await;
    let unlucky = Unlucky::default();
    let service = ServiceBuilder::new()
        .layer(layer(&ground))
        .concurrency_limit(1)
        .service(service_fn(move |request| unlucky.clone().try_it(request)));
    let processed = in_time(service.oneshot(message("a"))).await;
    assert!(is_new(&processed), "{processed:?}");
    assert_eq!(ground.facts().await, 1);
}

#[tokio::test]
async fn who_waits_for_a_place_and_who_waits_for_a_connection_do_not_wait_for_each_other() {
    let ground = Ground::new().await;
    assert!(is_new(
        &ground.process(&Idem::new(), &message("first")).await
    ));
    let (unlucky, pool) = (Unlucky::default(), ground.pool_of(1));
    let (entered, mut is_in) = mpsc::channel(8);
    let handler = {
        let pool = pool.clone();
        move |Protected { tx, message }: Protected| {
            let (unlucky, pool, entered) = (unlucky.clone(), pool.clone(), entered.clone());
            async move {
                entered.send(()).await?;
                if message.message_id() == Some("loses") {
                    return unlucky.try_it(Protected { tx, message }).await;
                }
                if message.message_id() == Some("has both") {
                    until("the loser waits for the connection", async || {
                        pool.status().waiting == 1
                    })
                    .await;
                }
                note(tx, message).await
            }
        }
    };
    let service = ServiceBuilder::new()
        .layer(IdemLayer::new(Idem::new(), pool))
        .concurrency_limit(1)
        .service(service_fn(handler));
    let run = |id: &'static str| {
        let service = service.clone();
        // As a broker does, until it is done.
        tokio::spawn(async move {
            while let Err(error) = service.clone().oneshot(message(id)).await {
                assert!(error.is_retryable(), "{error}");
            }
        })
    };
    let mut all = Vec::new();
    for id in ["loses", "has both"] {
        all.push(run(id));
        in_time(is_in.recv()).await.unwrap();
    }
    // It gets its place before the loser gets the connection, and asks for the connection after it.
    all.push(run("has a place"));
    in_time(futures_util::future::try_join_all(all))
        .await
        .unwrap();
    assert_eq!(ground.facts().await, 4);
}

#[tokio::test]
async fn a_handler_may_be_a_service() {
    let ground = Ground::new().await;
    let service = ServiceBuilder::new()
        .concurrency_limit(1)
        .timeout(DEADLINE)
        .service(service_fn(async |Protected { tx, message }: Protected| {
            note(tx, message)
                .await
                .map_err(|error| BoxError::from(error.to_string()))
        }));
    let handler = service_handler(service);
    let idem = Idem::new();
    for n in 0..3 {
        let processed = idem
            .process(&ground.pool, &message("a"), |tx, message| {
                handler.handle(tx, message)
            })
            .await;
        assert_eq!(is_new(&processed), n == 0, "{processed:?}");
    }
    assert_eq!(ground.facts().await, 1);
}

#[tokio::test]
async fn a_pipeline_can_be_spawned() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let ground = Ground::new().await;
    let service = ServiceBuilder::new()
        .layer(layer(&ground))
        .service(service_fn(noting));
    let service = tower::util::BoxCloneService::new(service);
    let answer: Result<Processed, _> = tokio::spawn(is_send(
        service.oneshot(Message::new("tests", "{}").with_message_id("a")),
    ))
    .await
    .unwrap();
    assert!(is_new(&answer));
}

#[tokio::test]
async fn a_conflict_in_a_handler_that_speaks_anyhow_is_tried_again() {
    let ground = Ground::new().await;
    let unlucky = Unlucky::default();
    let processed = Idem::new()
        .process(&ground.pool, &message("a"), |tx, message| {
            let is_first = unlucky.seen.lock().unwrap().insert("a".into());
            async move {
                let work = async || -> anyhow::Result<()> {
                    if is_first {
                        tx.batch_execute(LOSE).await?;
                    }
                    Ok(())
                };
                work().await?;
                note(tx, message).await
            }
        })
        .await;
    assert!(is_new(&processed), "{processed:?}");
}

#[tokio::test]
async fn what_no_attempt_can_mend_stays_so_through_layers_that_box_errors() {
    let ground = Ground::new().await;
    let service = ServiceBuilder::new()
        .layer(layer(&ground))
        .timeout(DEADLINE)
        .service(service_fn(async |_: Protected| {
            Err::<Vec<Effect>, _>(TerminalError::new("there is no such account"))
        }));
    let error = service.oneshot(message("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminal);
    assert!(
        error.to_string().contains("there is no such account"),
        "{error}"
    );
}
