//! Effects that are handed over to handlers in the same database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, Pool};
use idem_client::{
    Effect, Handled, HandlerError, Idem, Local, Message, OutgoingMessage, PublishError, Publisher,
    Topics, Tx, create_relay,
};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    broker::Broker,
    support::{Database, until},
    world::{Running, parked, quick, say, until_acknowledged},
};

/// Counts each effect, and tells so by an effect of its own.
async fn count(tx: Tx, message: Message) -> Handled {
    let says: String = message.json()?;
    tx.execute("INSERT INTO seen (says) VALUES ($1)", &[&says])
        .await?;
    Ok(vec![
        Effect::json("facts", &format!("saw {says}"))?.key("facts"),
    ])
}

async fn make_table(client: &Client) {
    client
        .batch_execute("CREATE TABLE seen (says text)")
        .await
        .unwrap();
}

async fn seen(client: &Client) -> Vec<String> {
    let rows = client
        .query("SELECT says FROM seen ORDER BY says", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Two relays hand over the same effects at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_takes_effect_once_when_two_relays_race() {
    const EFFECTS: usize = 60;
    let db = Database::create();
    let client = db.connect().await;
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
    // Each relay publishes what resulted: the same facts, once each.
    for broker in [one, two] {
        let mut facts = broker.of_key("facts");
        facts.sort();
        assert_eq!(
            facts,
            once.iter()
                .map(|says| format!("saw {says}"))
                .collect::<Vec<_>>()
        );
    }
    assert_eq!(parked(&client).await, []);
}

/// Hands over and never says so: what a process looks like that dies between commit and
/// acknowledgement.
struct Mute(Local);

impl Publisher for Mute {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        Publisher::publish(&self.0, message).await?;
        std::future::pending().await
    }
}

#[tokio::test]
async fn an_effect_takes_effect_once_when_its_relay_dies_before_it_acknowledges() {
    let db = Database::create();
    let client = db.connect().await;
    make_table(&client).await;
    for says in ["a", "b"] {
        say(&client, None, says).await;
    }
    let pool = db.pool(4);
    let local = || Local::new(pool.clone(), Idem::new()).handle("things", count);
    let dying = Running::start(quick(pool.clone(), Mute(local())).lease(Duration::from_secs(1)));
    until("both have taken effect", async || {
        seen(&client).await.len() == 2
    })
    .await;
    dying.kill().await;

    let broker = Broker::default();
    let topics = Topics::new()
        .topic("things", local())
        .otherwise(broker.clone());
    let heir = Running::start(quick(pool.clone(), topics));
    broker.until_taken(2).await;
    until_acknowledged(&client, "default").await;
    let summary = heir.stop().await;
    assert_eq!(
        summary.published, 4,
        "both again, and what resulted from them"
    );
    assert_eq!(seen(&client).await, ["a", "b"]);
    assert_eq!(broker.taken().len(), 2);
}

#[tokio::test]
async fn a_handler_that_fails_is_tried_again_and_one_that_fails_for_good_has_its_effect_parked() {
    let db = Database::create();
    let client = db.connect().await;
    make_table(&client).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let tried = Arc::clone(&attempts);
    let handler = move |tx: Tx, message: Message| {
        let tried = Arc::clone(&tried);
        async move {
            let says: String = message.json()?;
            tx.execute("INSERT INTO seen (says) VALUES ($1)", &[&says])
                .await?;
            match says.as_str() {
                "flaky" if tried.fetch_add(1, Ordering::SeqCst) < 2 => Err("try again".into()),
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
        "what failed was rolled back"
    );
    let parked = parked(&client).await;
    assert_eq!(
        parked.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [hopeless, unknown]
    );
    // At once: not after so many attempts.
    assert!(
        parked[0].1.starts_with("it cannot be published: "),
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
async fn a_database_that_is_away_says_nothing_about_an_effect() {
    let nobody = "host=127.0.0.1 port=1 user=nobody connect_timeout=5";
    let pool = Pool::builder(Manager::new(nobody.parse().unwrap(), NoTls))
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
async fn a_handler_that_breaks_every_connection_has_failed() {
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

/// Its table is not there yet, or an API is down: other topics go on, and nothing is parked.
#[tokio::test]
async fn i4_handler_whose_environment_fails_is_waited_for() {
    let db = Database::create();
    let local = Local::new(db.pool(2), Idem::new()).handle("things", count);
    let effect = OutgoingMessage::new(Uuid::nil(), "things", "\"a\"");
    let error = local.publish(&effect).await.unwrap_err();
    assert!(
        matches!(error, PublishError::TopicUnavailable(_)),
        "{error:?}"
    );
    let client = db.connect().await;
    make_table(&client).await;
    local.publish(&effect).await.unwrap();
    assert_eq!(seen(&client).await, ["a"]);
}
