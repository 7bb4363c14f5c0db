//! Tests of `Local`: effects for handlers in the same database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, Pool};
use idem_client::{Effect, relay::create_relay};
use idem_runtime::{
    Handled, HandlerError, Idem, Message, OutgoingMessage, PublishError, Publisher, Tx,
    relay::{Local, Topics},
};
use idem_testkit::{Database, until};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    broker::Broker,
    fixtures::{Running, parked, quick, say, until_acknowledged},
};

/// A handler that inserts each effect and returns another effect.
async fn count(tx: Tx, message: Message) -> Handled {
    let payload: String = message.json()?;
    tx.execute("INSERT INTO seen (payload) VALUES ($1)", &[&payload])
        .await?;
    Ok(vec![
        Effect::json("facts", &format!("saw {payload}"))?.key("facts"),
    ])
}

async fn make_table(client: &Client) {
    client
        .batch_execute("CREATE TABLE seen (payload text)")
        .await
        .unwrap();
}

async fn seen(client: &Client) -> Vec<String> {
    let rows = client
        .query("SELECT payload FROM seen ORDER BY payload", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Goal: when two relays deliver the same effects at the same time, each effect is handled once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_relays_handle_an_effect_once() {
    const EFFECTS: usize = 60;
    let db = Database::create();
    let client = db.client().await;
    make_table(&client).await;
    create_relay(&client, "second", 1, true).await.unwrap();
    for n in 0..EFFECTS {
        say(&client, None, &format!("{n:02}")).await;
    }
    let pool = db.pool(8);
    let start = |name: &str, broker: &Broker| {
        let local = Local::new(pool.clone(), Idem::new()).handle("things", count);
        let topics = Topics::new()
            .topic("things", local)
            .otherwise(broker.clone());
        Running::start(quick(pool.clone(), topics).name(name).in_flight(4))
    };
    let (one, two) = (Broker::default(), Broker::default());
    let (first, second) = (start("default", &one), start("second", &two));
    for broker in [&one, &two] {
        broker.until_taken(EFFECTS).await;
    }
    for relay in ["default", "second"] {
        until_acknowledged(&client, relay).await;
    }
    first.stop().await;
    second.stop().await;
    let once: Vec<_> = (0..EFFECTS).map(|n| format!("{n:02}")).collect();
    assert_eq!(seen(&client).await, once);
    // Each relay publishes, exactly once, the effects that the handlers returned.
    for broker in [one, two] {
        let mut facts = broker.of_key("facts");
        facts.sort();
        assert_eq!(
            facts,
            once.iter()
                .map(|payload| format!("saw {payload}"))
                .collect::<Vec<_>>()
        );
    }
    assert_eq!(parked(&client).await, []);
}

/// A publisher that runs the handler and then never completes, like a process that crashes between
/// the commit and the acknowledgement.
struct Mute(Local);

impl Publisher for Mute {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        Publisher::publish(&self.0, message).await?;
        std::future::pending().await
    }
}

#[tokio::test]
async fn crash_before_the_acknowledgement_handles_an_effect_once() {
    let db = Database::create();
    let client = db.client().await;
    make_table(&client).await;
    for payload in ["a", "b"] {
        say(&client, None, payload).await;
    }
    let pool = db.pool(4);
    let local = || Local::new(pool.clone(), Idem::new()).handle("things", count);
    let dying = Running::start(quick(pool.clone(), Mute(local())).lease(Duration::from_secs(1)));
    until("both effects are handled", async || {
        seen(&client).await.len() == 2
    })
    .await;
    dying.kill().await;

    let broker = Broker::default();
    let topics = Topics::new()
        .topic("things", local())
        .otherwise(broker.clone());
    let successor = Running::start(quick(pool.clone(), topics));
    broker.until_taken(2).await;
    until_acknowledged(&client, "default").await;
    let summary = successor.stop().await;
    assert_eq!(
        summary.published, 4,
        "both effects again, and the two that result from them"
    );
    assert_eq!(seen(&client).await, ["a", "b"]);
    assert_eq!(broker.taken().len(), 2);
}

#[tokio::test]
async fn failed_handler_is_retried_and_terminal_error_is_parked() {
    let db = Database::create();
    let client = db.client().await;
    make_table(&client).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let tried = Arc::clone(&attempts);
    let handler = move |tx: Tx, message: Message| {
        let tried = Arc::clone(&tried);
        async move {
            let payload: String = message.json()?;
            tx.execute("INSERT INTO seen (payload) VALUES ($1)", &[&payload])
                .await?;
            match payload.as_str() {
                "flaky" if tried.fetch_add(1, Ordering::SeqCst) < 2 => {
                    Err("temporary failure".into())
                }
                "hopeless" => Err(HandlerError::terminal("no such player")),
                _ => Ok(vec![]),
            }
        }
    };
    let hopeless = say(&client, None, "hopeless").await;
    say(&client, None, "flaky").await;
    let local = Local::new(db.pool(4), Idem::new()).handle("things", handler);
    let relay = Running::start(quick(db.pool(2), Topics::new().topic("things", local)));
    let unknown = idem_client::send(&client, &Effect::json("nowhere", &1).unwrap())
        .await
        .unwrap();
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    assert_eq!(
        seen(&client).await,
        ["flaky"],
        "failed handlers are rolled back"
    );
    let parked = parked(&client).await;
    assert_eq!(
        parked.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [hopeless, unknown]
    );
    // The terminal error parks the effect at its first attempt.
    assert!(
        parked[0].1.starts_with("the effect cannot be published: "),
        "{parked:?}"
    );
    assert!(parked[0].1.contains("no such player"), "{parked:?}");
    assert!(
        parked[1]
            .1
            .contains("no publisher is set up for the topic \"nowhere\""),
        "{parked:?}"
    );
}

#[tokio::test]
async fn unreachable_database_is_not_a_failure_of_the_effect() {
    let unreachable = "host=127.0.0.1 port=1 user=postgres connect_timeout=5";
    let pool = Pool::builder(Manager::new(unreachable.parse().unwrap(), NoTls))
        .build()
        .unwrap();
    let local = Local::new(pool, Idem::new()).handle("things", count);
    let effect = OutgoingMessage::new(Uuid::nil(), "things", "\"a\"");
    let error = local.publish(&effect).await.unwrap_err();
    assert!(matches!(error, PublishError::Unavailable(_)), "{error:?}");
    let elsewhere = OutgoingMessage::new(Uuid::nil(), "elsewhere", "\"a\"");
    let error = local.publish(&elsewhere).await.unwrap_err();
    assert!(matches!(error, PublishError::Permanent(_)), "{error:?}");
}

#[tokio::test]
async fn handler_that_breaks_its_connections_is_rejected() {
    let db = Database::create();
    let local = Local::new(db.pool(2), Idem::new()).handle("things", async |tx: Tx, _: Message| {
        tx.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())")
            .await?;
        Ok(vec![])
    });
    let effect = OutgoingMessage::new(Uuid::nil(), "things", "\"a\"");
    let error = local.publish(&effect).await.unwrap_err();
    assert!(matches!(error, PublishError::Rejected(_)), "{error:?}");
}

/// Goal: a missing table or a failing API makes the topic of the handler unavailable. The relay
/// continues with other topics and parks no effect. Invariant: I4.
#[tokio::test]
async fn i4_failing_environment_of_a_handler_is_waited_for() {
    let db = Database::create();
    let local = Local::new(db.pool(2), Idem::new()).handle("things", count);
    let effect = OutgoingMessage::new(Uuid::nil(), "things", "\"a\"");
    let error = local.publish(&effect).await.unwrap_err();
    assert!(
        matches!(error, PublishError::TopicUnavailable(_)),
        "{error:?}"
    );
    let client = db.client().await;
    make_table(&client).await;
    local.publish(&effect).await.unwrap();
    assert_eq!(seen(&client).await, ["a"]);
}
