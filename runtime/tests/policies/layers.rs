//! Tests of `IdemLayer` together with layers of tower.

use std::{
    collections::HashSet,
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use idem_client::{Effect, ErrorKind};
use idem_runtime::{
    HandlerError, Idem, Message, Processed, Settlement,
    handler::TerminalError,
    layer::{IdemLayer, Protected, service_handler},
};
use idem_testkit::{DEADLINE, in_time, until};
use tokio::sync::{Notify, mpsc};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::fixtures::{Fixture, is_duplicate, is_new, message, note};

fn layer(fixture: &Fixture) -> IdemLayer {
    IdemLayer::new(Idem::new(), fixture.pool.clone())
}

async fn insert_fact(Protected { tx, message }: Protected) -> Result<Vec<Effect>, HandlerError> {
    note(tx, message).await
}

/// Returns a service that inserts a row, sends to `entered`, and never completes.
fn stuck(
    entered: mpsc::Sender<()>,
) -> impl Fn(Protected) -> BoxFuture<'static, Result<Vec<Effect>, BoxError>> + Clone {
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

/// Asserts that there is no row, no claim and no open transaction, and that the message can still
/// be processed.
async fn assert_no_trace(fixture: &Fixture) {
    until("no transaction is open", async || {
        fixture
            .count(
                "pg_stat_activity WHERE datname = current_database()
                 AND xact_start IS NOT NULL AND pid <> pg_backend_pid()",
            )
            .await
            == 0
    })
    .await;
    assert_eq!((fixture.facts().await, fixture.claims().await), (0, 0));
    assert!(is_new(&fixture.process(&Idem::new(), &message("a")).await));
}

#[tokio::test]
async fn layered_service_handles_a_message_once() {
    let fixture = Fixture::new().await;
    let mut service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .service_fn(insert_fact);
    let first = service.ready().await.unwrap().call(message("a")).await;
    assert!(is_new(&first));
    let again = service.ready().await.unwrap().call(message("a")).await;
    assert!(is_duplicate(&again));
    assert_eq!((fixture.facts().await, fixture.claims().await), (1, 1));
}

#[tokio::test]
async fn timeout_above_the_layer_commits_nothing() {
    let fixture = Fixture::new().await;
    let (entered, mut handler_entered) = mpsc::channel(1);
    let service = ServiceBuilder::new()
        .timeout(Duration::from_millis(500))
        .layer(layer(&fixture))
        .service(service_fn(stuck(entered)));
    // Repeat the request until a timeout occurs after the handler has begun.
    let error = loop {
        let error = service.clone().oneshot(message("a")).await.unwrap_err();
        if handler_entered.try_recv().is_ok() {
            break error;
        }
    };
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
    assert_no_trace(&fixture).await;
}

#[tokio::test]
async fn timeout_below_the_layer_is_a_handler_error() {
    let fixture = Fixture::new().await;
    let (entered, mut handler_entered) = mpsc::channel(1);
    let service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .timeout(Duration::from_millis(500))
        .service(service_fn(stuck(entered)));
    let error = loop {
        let error = service.clone().oneshot(message("a")).await.unwrap_err();
        if handler_entered.try_recv().is_ok() {
            break error;
        }
    };
    assert!(
        matches!(error, idem_runtime::Error::Handler(_)),
        "{error:?}"
    );
    assert_eq!(error.settlement(), Settlement::RETRY);
    assert_no_trace(&fixture).await;
}

/// A handler that counts its concurrent runs. Each run waits for `leave`.
#[derive(Clone, Default)]
struct Room {
    inside: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    leave: Arc<Notify>,
}

impl Room {
    async fn handle(
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
async fn concurrency_limit_below_the_layer_loses_no_message() {
    let fixture = Fixture::new().await;
    // The first claim of a destination blocks other claims until its transaction ends, so claim one
    // message before the test.
    assert!(is_new(
        &fixture.process(&Idem::new(), &message("first")).await
    ));
    let gated = Room::default();
    let handler = gated.clone();
    let service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .concurrency_limit(2)
        .service(service_fn(move |request| handler.clone().handle(request)));
    let messages = (0..8).map(|n| message(&format!("m-{n}")));
    let running: Vec<_> = messages
        .map(|message| tokio::spawn(service.clone().oneshot(message)))
        .collect();
    until("the limit of concurrent handlers is reached", async || {
        gated.inside.load(Ordering::SeqCst) == 2
    })
    .await;
    for task in running {
        let leaving = tokio::spawn({
            let gated = gated.clone();
            async move {
                loop {
                    gated.leave.notify_one();
                    tokio::task::yield_now().await;
                }
            }
        });
        let processed = in_time(task).await.unwrap();
        leaving.abort();
        assert!(is_new(&processed), "{processed:?}");
    }
    assert_eq!(fixture.facts().await, 9);
    assert_eq!(gated.most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn duplicate_returns_its_permit_without_a_handler_run() {
    let fixture = Fixture::new().await;
    let service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .concurrency_limit(1)
        .service(service_fn(insert_fact));
    for n in 0..3 {
        let processed = in_time(service.clone().oneshot(message("a"))).await;
        assert_eq!(is_new(&processed), n == 0, "{processed:?}");
    }
}

#[tokio::test]
async fn layer_is_ready_only_when_the_inner_service_is() {
    let fixture = Fixture::new().await;
    let (entered, mut handler_entered) = mpsc::channel(1);
    let mut service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .concurrency_limit(1)
        .service(service_fn(stuck(entered)));
    let first = tokio::spawn(service.ready().await.unwrap().call(message("a")));
    in_time(handler_entered.recv()).await.unwrap();
    assert!(futures_util::poll!(std::pin::pin!(service.ready())).is_pending());
    first.abort();
    assert!(in_time(service.ready()).await.is_ok());
}

const CONFLICT: &str =
    "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure'; END $$";

/// A handler that fails with a serialization failure at the first attempt of each message, and
/// succeeds at the second attempt.
#[derive(Clone, Default)]
struct Unlucky {
    seen: Arc<Mutex<HashSet<String>>>,
}

impl Unlucky {
    async fn handle(
        self,
        Protected { tx, message }: Protected,
    ) -> Result<Vec<Effect>, HandlerError> {
        let is_first = self
            .seen
            .lock()
            .unwrap()
            .insert(message.message_id().unwrap_or_default().to_owned());
        if is_first {
            tx.batch_execute(CONFLICT).await?;
        }
        note(tx, message).await
    }
}

#[tokio::test]
async fn conflict_is_retried_below_a_concurrency_limit() {
    let fixture = Fixture::new().await;
    let conflicting = Unlucky::default();
    let service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .concurrency_limit(1)
        .service(service_fn(move |request| {
            conflicting.clone().handle(request)
        }));
    let processed = in_time(service.oneshot(message("a"))).await;
    assert!(is_new(&processed), "{processed:?}");
    assert_eq!(fixture.facts().await, 1);
}

/// Goal: a message that waits for a permit and a message that waits for a connection do not block
/// each other.
#[tokio::test]
async fn waiting_for_permits_and_connections_is_no_deadlock() {
    let fixture = Fixture::new().await;
    assert!(is_new(
        &fixture.process(&Idem::new(), &message("first")).await
    ));
    let (conflicting, pool) = (Unlucky::default(), fixture.pool_of(1));
    let (entered, mut handler_entered) = mpsc::channel(8);
    let handler = {
        let pool = pool.clone();
        move |Protected { tx, message }: Protected| {
            let (conflicting, pool, entered) = (conflicting.clone(), pool.clone(), entered.clone());
            async move {
                entered.send(()).await?;
                if message.message_id() == Some("conflict") {
                    return conflicting.handle(Protected { tx, message }).await;
                }
                if message.message_id() == Some("permit and connection") {
                    until(
                        "the message with a conflict waits for the connection",
                        move || ready(pool.status().waiting == 1),
                    )
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
        // Redeliver until the message is processed, as a broker does.
        tokio::spawn(async move {
            while let Err(error) = service.clone().oneshot(message(id)).await {
                assert!(error.is_retryable(), "{error}");
            }
        })
    };
    let mut all = Vec::new();
    for id in ["conflict", "permit and connection"] {
        all.push(run(id));
        in_time(handler_entered.recv()).await.unwrap();
    }
    // The third message gets its permit while the first message still waits for the connection. The
    // third message then requests the connection after the first.
    all.push(run("permit"));
    in_time(futures_util::future::try_join_all(all))
        .await
        .unwrap();
    assert_eq!(fixture.facts().await, 4);
}

#[tokio::test]
async fn service_can_be_a_handler() {
    let fixture = Fixture::new().await;
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
        let processed = idem.process(&fixture.pool, &message("a"), &handler).await;
        assert_eq!(is_new(&processed), n == 0, "{processed:?}");
    }
    assert_eq!(fixture.facts().await, 1);
}

#[tokio::test]
async fn layered_service_can_be_spawned() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let fixture = Fixture::new().await;
    let service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .service(service_fn(insert_fact));
    let service = tower::util::BoxCloneService::new(service);
    let processed: Result<Processed, _> = tokio::spawn(is_send(
        service.oneshot(Message::new("tests", "{}").with_message_id("a")),
    ))
    .await
    .unwrap();
    assert!(is_new(&processed));
}

#[tokio::test]
async fn conflict_in_an_anyhow_error_is_retried() {
    let fixture = Fixture::new().await;
    let conflicting = Unlucky::default();
    let processed = Idem::new()
        .process(&fixture.pool, &message("a"), |tx, message| {
            let is_first = conflicting.seen.lock().unwrap().insert("a".into());
            async move {
                let work = async || -> anyhow::Result<()> {
                    if is_first {
                        tx.batch_execute(CONFLICT).await?;
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
async fn terminal_error_stays_terminal_when_a_layer_boxes_it() {
    let fixture = Fixture::new().await;
    let service = ServiceBuilder::new()
        .layer(layer(&fixture))
        .timeout(DEADLINE)
        .service(service_fn(async |_: Protected| {
            Err::<Vec<Effect>, _>(TerminalError::new("the account does not exist"))
        }));
    let error = service.oneshot(message("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminal);
    assert!(
        error.to_string().contains("the account does not exist"),
        "{error}"
    );
}
