//! I4: the relay waits for missing parts of the database or of the broker. It logs each missing
//! part once, and shows it in the status.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, Pool};
use idem_client::{Effect, send};
use idem_runtime::{OutgoingMessage, PublishError, Publisher};
use idem_testkit::{Database, log::Log, until};
use tokio_postgres::{Client, NoTls};
use tracing::Level;

use crate::{
    broker::{Broker, Fate},
    fixtures::{Running, parked, quick, rounds, say, say_rounds, until_acknowledged},
};

/// Waits until the server has rolled back `times` more transactions.
pub async fn until_refused(client: &Client, times: i64) {
    let rolled_back = async || -> i64 {
        let rolled_back =
            "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        client.query_one(rolled_back, &[]).await.unwrap().get(0)
    };
    let before = rolled_back().await;
    until("more transactions are rolled back", async || {
        rolled_back().await >= before + times
    })
    .await;
}

/// Waits until the relay has run `times` more transactions in the database. The queries of this
/// function run in another database and do not count.
async fn until_transactions(db: &Database, times: i64) {
    let transactions = || -> i64 {
        let counter = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname";
        let sql = format!("{counter} = '{}'", db.name());
        let count = db.cluster().psql("postgres", &sql).unwrap();
        count.trim().parse().unwrap()
    };
    let before = transactions();
    until("the relay runs more transactions", async || {
        transactions() >= before + times
    })
    .await;
}

/// Goal: a relay process waits while its relay is not created or was dropped, and continues when
/// the relay is created. Invariant: I4.
#[tokio::test]
async fn i4_missing_relay_is_waited_for_with_one_warning() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.client().await;
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()).name("later"));
    for round in 1..=2 {
        until_refused(&client, 3).await;
        assert!(!relay.status.borrow().database);
        let reason = relay
            .status
            .borrow()
            .database_error
            .clone()
            .unwrap_or_default();
        assert!(reason.starts_with("42704: "), "{reason}");
        client
            .batch_execute("SELECT idem_create_relay('later')")
            .await
            .unwrap();
        until("the database is available", async || {
            relay.status.borrow().database
        })
        .await;
        say(&client, Some("a"), &format!("a-{round}")).await;
        broker.until_taken(round).await;
        assert_eq!(relay.status.borrow().database_error, None);
        let warnings = log.lines(Level::WARN, "");
        assert_eq!(warnings.len(), round, "{warnings:#?}");
        until_acknowledged(&client, "later").await;
        client
            .batch_execute("SELECT idem_drop_relay('later')")
            .await
            .unwrap();
    }
    until_refused(&client, 1).await;
    relay.stop().await;
    assert_eq!(broker.of_key("a"), ["a-1", "a-2"]);
}

/// Goal: the relay waits for `idem_grant` if its role has no grant at the start. Invariant: I4.
#[tokio::test]
async fn i4_missing_grant_is_waited_for_with_one_warning() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.client().await;
    let role = format!("ungranted_of_{}", db.name());
    client
        .batch_execute(&format!("CREATE ROLE {role} LOGIN"))
        .await
        .unwrap();
    let mut config: tokio_postgres::Config = db.direct_url().parse().unwrap();
    config.user(&role);
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(2)
        .build()
        .unwrap();
    let broker = Broker::default();
    let relay = Running::start(quick(pool, broker.clone()));
    say(&client, Some("a"), "a-0").await;
    until("the status has a database error", async || {
        relay.status.borrow().database_error.is_some()
    })
    .await;
    until_transactions(&db, 3).await;
    let reason = relay
        .status
        .borrow()
        .database_error
        .clone()
        .unwrap_or_default();
    assert!(reason.starts_with("42501: "), "{reason}");
    let grant = format!("SELECT idem_grant('{role}', 'relay')");
    client.batch_execute(&grant).await.unwrap();
    broker.until_taken(1).await;
    let warnings = log.lines(Level::WARN, "");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    relay.stop().await;
}

/// Goal: the relay waits for ALTER EXTENSION UPDATE if the client is newer than the SQL. Invariant:
/// I4.
#[tokio::test]
async fn i4_older_sql_is_waited_for_with_one_warning() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.client().await;
    let rename = async |from: &str, to: &str| {
        let rename = format!(
            "ALTER FUNCTION {from}(text, integer, integer, interval, bigint) RENAME TO {to}"
        );
        client.batch_execute(&rename).await.unwrap();
    };
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    say(&client, Some("a"), "a-0").await;
    broker.until_taken(1).await;
    rename("idem_relay_next", "not_there_yet").await;
    say(&client, Some("a"), "a-1").await;
    until_refused(&client, 3).await;
    let reason = relay
        .status
        .borrow()
        .database_error
        .clone()
        .unwrap_or_default();
    assert!(reason.starts_with("42883: "), "{reason}");
    rename("not_there_yet", "idem_relay_next").await;
    broker.until_taken(2).await;
    relay.stop().await;
    assert_eq!(broker.of_key("a"), rounds("a", 2));
    assert_eq!(log.lines(Level::WARN, "").len(), 1);
}

/// Goal: after a restore into a cluster whose transaction ids are lower, the relay waits until
/// `idem_repair_relays` was called. Invariant: I4.
#[tokio::test]
async fn i4_restore_into_a_younger_cluster_is_waited_for() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let mut client = db.client().await;
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let mut status = relay.status.clone();
    status.wait_for(|status| status.database).await.unwrap();
    let tx = client.transaction().await.unwrap();
    say(tx.client(), Some("a"), "a-0").await;
    for slice in 0..4 {
        let young = format!("UPDATE idem.outbox_{slice} SET tx = '99999999'");
        tx.batch_execute(&young).await.unwrap();
    }
    tx.commit().await.unwrap();
    until_refused(&client, 3).await;
    let reason = relay
        .status
        .borrow()
        .database_error
        .clone()
        .unwrap_or_default();
    assert!(
        reason.starts_with("55000: ") && reason.contains("idem_repair_relays"),
        "{reason}"
    );
    let repair = "SELECT idem_repair_relays()";
    let repaired = client.query_one(repair, &[]).await.unwrap();
    assert_eq!(repaired.get::<_, i64>(0), 1);
    broker.until_taken(1).await;
    relay.stop().await;
    assert_eq!(log.lines(Level::WARN, "").len(), 1);
}

/// Goal: when a relay is dropped and created again with more partitions, its running process serves
/// all new partitions. Invariant: I4.
#[tokio::test]
async fn i4_all_partitions_of_a_relay_created_again_are_served() {
    const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let db = Database::create();
    let mut client = db.client().await;
    client
        .batch_execute("SELECT idem_create_relay('again')")
        .await
        .unwrap();
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(3), broker.clone()).name("again"));
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    client
        .batch_execute("SELECT idem_drop_relay('again')")
        .await
        .unwrap();
    until("the relay is missing", async || {
        !relay.status.borrow().database
    })
    .await;
    client
        .batch_execute("SELECT idem_create_relay('again', 4)")
        .await
        .unwrap();
    say_rounds(&mut client, &KEYS, 1).await;
    broker.until_taken(KEYS.len()).await;
    until_acknowledged(&client, "again").await;
    client
        .batch_execute("SELECT idem_drop_relay('again')")
        .await
        .unwrap();
    until("the relay is missing", async || {
        !relay.status.borrow().database
    })
    .await;
    client
        .batch_execute("SELECT idem_create_relay('again')")
        .await
        .unwrap();
    say(&client, None, "last").await;
    broker.until_taken(KEYS.len() + 1).await;
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    relay.stop().await;
}

/// Sends effects of two keys to a topic that does not exist. For each of the two keys, sends a
/// later effect to an existing topic.
async fn say_to_both_topics(client: &Client) {
    for (topic, key, payload) in [
        ("absent", "a", "a-0"),
        ("things", "a", "a-1"),
        ("absent", "b", "b-0"),
        ("things", "b", "b-1"),
        ("things", "c", "c-0"),
    ] {
        send(client, &Effect::json(topic, &payload).unwrap().key(key))
            .await
            .unwrap();
    }
}

/// Returns the rule of a broker in which the topic `absent` is missing while `is_absent` is true.
fn absent(is_absent: &Arc<AtomicBool>) -> impl FnMut(&str) -> Fate + Send + 'static {
    let is_absent = Arc::clone(is_absent);
    move |payload| match payload {
        "a-0" | "b-0" if is_absent.load(Ordering::SeqCst) => Fate::NoPlace,
        _ => Fate::Take,
    }
}

/// Goal: two processes share a partition with an effect of a missing topic. The process with the
/// lease keeps it for much longer than the lease time. Invariant: I4.
#[tokio::test]
async fn i4_lease_is_kept_while_a_topic_is_missing() {
    let db = Database::create();
    let client = db.client().await;
    say_to_both_topics(&client).await;
    let is_absent = Arc::new(AtomicBool::new(true));
    let (broker, other) = (Broker::default(), Broker::default());
    broker.rule(absent(&is_absent));
    let start = |broker: &Broker| {
        Running::start(quick(db.pool(2), broker.clone()).lease(Duration::from_millis(800)))
    };
    let first = start(&broker);
    broker.until_taken(1).await;
    let second = start(&other);
    let extended = "SELECT count(*) > 6 FROM idem.progress WHERE leased_until IS NOT NULL";
    until("the lease is extended", async || {
        client
            .query_one(extended, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
    assert_eq!(other.taken(), [], "the process keeps its batch");
    assert_eq!(broker.of_key("c"), ["c-0"]);
    assert_eq!(broker.taken().len(), 1);
    is_absent.store(false, Ordering::SeqCst);
    until_acknowledged(&client, "default").await;
    first.stop().await;
    second.stop().await;
    for key in ["a", "b"] {
        assert_eq!(
            broker.of_key(key),
            rounds(key, 2),
            "each effect is published once"
        );
    }
    assert_eq!((other.taken(), broker.overlaps()), (vec![], vec![]));
    assert_eq!(parked(&client).await, []);
}

/// Goal: a process that stops while it waits for a missing topic releases its batch. Invariant: I4.
#[tokio::test]
async fn i4_batch_with_a_missing_topic_is_released_at_a_stop() {
    let db = Database::create();
    let client = db.client().await;
    say_to_both_topics(&client).await;
    let is_absent = Arc::new(AtomicBool::new(true));
    let broker = Broker::default();
    broker.rule(absent(&is_absent));
    // The lease is an hour. If this process does not release it, the next process has to wait for
    // it.
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    broker.until_taken(1).await;
    until("one topic is unavailable", async || {
        relay.status.borrow().unavailable_topics == 1
    })
    .await;
    relay.stop().await;

    let successor = Broker::default();
    let relay = Running::start(quick(db.pool(2), successor.clone()));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!(successor.of_key("a"), rounds("a", 2));
    assert_eq!(successor.of_key("b"), rounds("b", 2));
}

/// Goal: effects that wait for a missing topic cause little load on the broker, because the relay
/// retries one effect at a time. Invariant: I4.
#[tokio::test]
async fn one_effect_of_a_missing_topic_is_tried_at_a_time() {
    const KEYS: [&str; 40] = ["k"; 40];
    let db = Database::create();
    let mut client = db.client().await;
    let tx = client.transaction().await.unwrap();
    for (n, key) in KEYS.iter().enumerate() {
        say(tx.client(), Some(&format!("{key}{n}")), "absent").await;
    }
    tx.commit().await.unwrap();
    let broker = Broker::default();
    broker.rule(|_| Fate::NoPlace);
    let relay = Running::start(quick(db.pool(2), broker.clone()).in_flight(KEYS.len()));
    until("all effects were tried", async || {
        broker.attempts("absent") >= 40
    })
    .await;
    // The back-off begins with delays of 100 ms and 200 ms, plus jitter.
    until("one effect is retried", async || {
        broker.attempts("absent") > 41
    })
    .await;
    assert!(
        broker.attempts("absent") < 50,
        "{}",
        broker.attempts("absent")
    );
    broker.rule(|_| Fate::Take);
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!(broker.taken().len(), KEYS.len());
    assert_eq!(parked(&client).await, []);
}

/// Goal: many partitions find the broker unavailable, and the relay logs this once. Invariant: I4.
#[tokio::test]
async fn i4_unavailable_broker_is_logged_once() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let mut client = db.client().await;
    client
        .batch_execute("SELECT idem_create_relay('split', 4, true)")
        .await
        .unwrap();
    say_rounds(&mut client, &["a", "b", "c", "d", "e", "f"], 2).await;
    let broker = Broker::default();
    broker.rule(|_| Fate::Unavailable);
    let relay = Running::start(quick(db.pool(5), broker.clone()).name("split"));
    let first = ["a-0", "b-0", "c-0", "d-0", "e-0", "f-0"];
    until("publishing is retried several times", async || {
        first
            .iter()
            .map(|payload| broker.attempts(payload))
            .sum::<u32>()
            > 20
    })
    .await;
    let status = relay.status.borrow().clone();
    assert_eq!(
        (status.broker, status.broker_error.as_deref()),
        (Some(false), Some("connection refused"))
    );
    broker.rule(|_| Fate::Take);
    until_acknowledged(&client, "split").await;
    until("the broker is available", async || {
        relay.status.borrow().broker == Some(true)
    })
    .await;
    assert_eq!(relay.status.borrow().broker_error, None);
    relay.stop().await;
    let (warnings, infos) = (
        log.lines(Level::WARN, ""),
        log.lines(Level::INFO, "available again"),
    );
    assert_eq!(
        (warnings.len(), infos.len()),
        (1, 1),
        "{warnings:#?} {infos:#?}"
    );
}

/// An error that has a cause, like the errors of broker clients.
#[derive(Debug, thiserror::Error)]
#[error("connecting failed")]
struct Connecting(#[source] std::io::Error);

/// A publisher that rejects every effect.
struct Refuses;

impl Publisher for Refuses {
    async fn publish(&self, _: &OutgoingMessage) -> Result<(), PublishError> {
        let cause = std::io::Error::other("disk failure");
        Err(PublishError::Rejected(Connecting(cause).into()))
    }
}

/// Goal: the log and the parked effect contain all causes of the failure.
#[tokio::test]
async fn parked_effect_has_all_causes_and_the_log_names_it() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.client().await;
    let id = say(&client, None, "poison").await;
    let relay = Running::start(quick(db.pool(2), Refuses).max_attempts(3));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    let reason =
        "after 3 attempts: the broker rejected the effect: connecting failed: disk failure";
    assert_eq!(parked(&client).await, [(id, reason.to_owned())]);
    let retries = log.lines(Level::WARN, "an effect is retried");
    assert_eq!(retries.len(), 1, "the first retry is logged: {retries:?}");
    let warnings = log.lines(Level::WARN, reason);
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains(&id.to_string()) && warnings[0].contains("things"),
        "{warnings:?}"
    );
}
