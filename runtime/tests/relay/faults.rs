//! Brokers and databases that fail: no effect is lost, and an effect uses up attempts only for its
//! own failures.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, Pool};
use idem_client::ErrorKind;
use idem_cluster::{Cluster, Install};
use idem_runtime::{Error, OutgoingMessage, PublishError, Publisher, Relay};
use idem_testkit::{DEADLINE, Database, until};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    broker::{Broker, Fate},
    fixtures::{Running, parked, quick, rounds, say, say_rounds, split, until_acknowledged},
};

/// Returns a parked effect to the relay `default`.
async fn unpark(client: &Client, message_id: Uuid) {
    let unpark = "SELECT idem_relay_unpark('default', $1)";
    let unparked = client.query_one(unpark, &[&message_id]).await.unwrap();
    assert!(unparked.get::<_, bool>(0));
}

#[tokio::test]
async fn rejected_effect_is_parked_and_its_key_continues() {
    let db = Database::create();
    let client = db.client().await;
    let poison = say(&client, Some("a"), "poison").await;
    say(&client, Some("a"), "next").await;
    let broker = Broker::default();
    broker.rule(|payload| {
        if payload == "poison" {
            Fate::Reject
        } else {
            Fate::Take
        }
    });
    let relay = Running::start(quick(db.pool(2), broker.clone()).max_attempts(4));
    until_acknowledged(&client, "default").await;
    assert_eq!(broker.of_key("a"), ["next"]);
    assert_eq!(broker.attempts("poison"), 4);
    let [(id, reason)] = &parked(&client).await[..] else {
        panic!("expected one parked effect");
    };
    assert_eq!(*id, poison);
    assert_eq!(
        reason,
        "after 4 attempts: the broker rejected the effect: the queue is full"
    );
    assert_eq!(relay.status.borrow().parked, 1);

    // The cause is repaired now. The test retries the effect, which again has all its attempts.
    let mut left = 3;
    broker.rule(move |_| {
        left -= 1;
        if left > 0 { Fate::Reject } else { Fate::Take }
    });
    unpark(&client, poison).await;
    broker.until_taken(2).await;
    assert_eq!(broker.of_key("a"), ["next", "poison"]);
    until_acknowledged(&client, "default").await;
    assert_eq!(parked(&client).await, []);
    let summary = relay.stop().await;
    assert_eq!((summary.published, summary.parked), (2, 1));
}

/// Goal: after `unpark`, an effect has all its attempts again, even if its batch ended with
/// an unavailable broker and an expired lease.
#[tokio::test]
async fn unparked_effect_has_all_its_attempts_again() {
    let db = Database::create();
    let client = db.client().await;
    let poison = say(&client, None, "poison").await;
    say(&client, None, "other").await;
    let broker = Broker::default();
    broker.rule(|payload| {
        if payload == "poison" {
            Fate::Reject
        } else {
            Fate::Unavailable
        }
    });
    let relay = quick(db.pool(2), broker.clone())
        .lease(Duration::from_millis(500))
        .max_attempts(3);
    let relay = Running::start(relay);
    let is_parked = async || parked(&client).await.len() == 1;
    until("the effect is parked", is_parked).await;
    assert_eq!(broker.attempts("poison"), 3);
    unpark(&client, poison).await;
    until("the effect is parked again", is_parked).await;
    assert_eq!(broker.attempts("poison"), 6);
    relay.stop().await;
}

#[tokio::test]
async fn permanent_failure_parks_the_effect_at_once() {
    let db = Database::create();
    let client = db.client().await;
    let poison = say(&client, Some("a"), "poison").await;
    say(&client, Some("a"), "next").await;
    let broker = Broker::default();
    broker.rule(|payload| {
        if payload == "poison" {
            Fate::Refuse
        } else {
            Fate::Take
        }
    });
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!(broker.attempts("poison"), 1);
    assert_eq!(broker.of_key("a"), ["next"]);
    let reason = "the effect cannot be published: no such exchange".to_owned();
    assert_eq!(parked(&client).await, [(poison, reason)]);
}

#[tokio::test]
async fn blocked_database_does_not_delay_the_shutdown() {
    let db = Database::create();
    let client = db.client().await;
    say(&client, None, "waits").await;
    let mut other = db.client().await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE idem.relay_partition IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let relay =
        Running::start(quick(db.pool(2), Broker::default()).grace(Duration::from_millis(100)));
    until("the relay waits for a lock", async || {
        let waiting = "SELECT EXISTS (SELECT FROM pg_locks
             WHERE relation = 'idem.relay_partition'::regclass AND NOT granted)";
        client
            .query_one(waiting, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
    let stopped = tokio::time::timeout(Duration::from_secs(10), relay.stop()).await;
    assert_eq!(stopped.expect("the relay does not stop").published, 0);
}

/// Goal: no effect is parked or lost when the broker is unavailable for longer than a lease, and
/// for more attempts than the limit of an effect.
#[tokio::test]
async fn unavailable_broker_parks_and_loses_no_effect() {
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["a", "b"], 3).await;
    let broker = Broker::default();
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    broker.rule(move |payload| {
        // An effect that was confirmed before the failure is not published again.
        if payload == "a-0" || !away.load(Ordering::SeqCst) {
            Fate::Take
        } else {
            Fate::Unavailable
        }
    });
    let relay = quick(db.pool(2), broker.clone())
        .max_attempts(2)
        .lease(Duration::from_millis(300));
    let relay = Running::start(relay);
    until("publishing fails several times", async || {
        broker.attempts("a-1") + broker.attempts("b-0") > 4
            && relay.status.borrow().broker == Some(false)
    })
    .await;
    let leases = "SELECT count(*) > 2 FROM idem.progress WHERE leased_until IS NOT NULL";
    until("leases have expired", async || {
        client
            .query_one(leases, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
    assert_eq!(parked(&client).await, []);
    is_away.store(false, Ordering::SeqCst);
    until_acknowledged(&client, "default").await;
    assert_eq!(relay.status.borrow().broker, Some(true));
    relay.stop().await;
    assert_eq!(
        broker.of_key("a"),
        rounds("a", 3),
        "each effect is published once"
    );
    assert_eq!(
        broker.of_key("b"),
        rounds("b", 3),
        "each effect is published once"
    );
    assert_eq!(parked(&client).await, []);
}

#[tokio::test]
async fn silent_broker_counts_as_unavailable() {
    let db = Database::create();
    let client = db.client().await;
    say(&client, None, "a").await;
    let broker = Broker::default();
    let mut first = true;
    broker.rule(move |_| {
        if std::mem::take(&mut first) {
            Fate::Silence
        } else {
            Fate::Take
        }
    });
    let relay = quick(db.pool(2), broker.clone()).publish_timeout(Duration::from_millis(50));
    let relay = Running::start(relay.max_attempts(1));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!((broker.attempts("a"), broker.taken().len()), (2, 1));
    assert_eq!(parked(&client).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_crash_loses_no_effect_and_no_order() {
    const ROUNDS: usize = 60;
    let install = Install::from_env().unwrap();
    let mut cluster = Cluster::builder(&install).name("relay").start().unwrap();
    cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
    let url = cluster.connection_string("postgres");
    let connect = async || {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let mut client = connect().await;
    split(&client, 2).await;
    let keys = ["a", "b", "c", "d"];
    say_rounds(&mut client, &keys, ROUNDS).await;
    let pool = Pool::builder(Manager::new(url.parse().unwrap(), NoTls))
        .max_size(3)
        .build()
        .unwrap();
    let broker = Broker::default();
    broker.rule(|_| Fate::Slowly(Duration::from_millis(2)));
    let relay = quick(pool, broker.clone())
        .name("split")
        .batch(10)
        .lease(Duration::from_secs(1));
    let relay = Running::start(relay);
    for crash in 1..=2 {
        broker.until_taken(crash * keys.len() * ROUNDS / 4).await;
        cluster.kill().unwrap();
        until("the status shows the failure", async || {
            !relay.status.borrow().database
        })
        .await;
        cluster.start().unwrap();
        cluster.wait_until_ready(DEADLINE).unwrap();
        until("the database is available", async || {
            relay.status.borrow().database
        })
        .await;
    }
    let client = connect().await;
    until_acknowledged(&client, "split").await;
    relay.stop().await;
    for key in keys {
        // If the crash loses an acknowledgement, only the effects of its batch are published again.
        let taken = broker.of_key(key);
        let mut firsts: Vec<String> = Vec::new();
        for payload in taken {
            if !firsts.contains(&payload) {
                firsts.push(payload);
            }
        }
        assert_eq!(firsts, rounds(key, ROUNDS));
    }
    assert_eq!(parked(&client).await, []);
}

#[tokio::test]
async fn invalid_setting_ends_the_relay() {
    let db = Database::create();
    let too_many = Running::start(quick(db.pool(2), Broker::default()).batch(20_000));
    assert_eq!(too_many.failed().await.kind(), ErrorKind::Invalid);
}

/// Goal: `idem_grant` with the kind `relay` permits all functions that a relay needs.
#[tokio::test]
async fn role_of_kind_relay_can_run_a_relay() {
    let db = Database::create();
    let client = db.client().await;
    let role = format!("relay_of_{}", db.name());
    client
        .batch_execute(&format!("CREATE ROLE {role} LOGIN"))
        .await
        .unwrap();
    let pool = || {
        // Connect directly, because the proxy has no login for the role.
        let mut config: tokio_postgres::Config = db.direct_url().parse().unwrap();
        config.user(&role);
        Pool::builder(Manager::new(config, NoTls))
            .max_size(2)
            .build()
            .unwrap()
    };
    let grant = format!("SELECT idem_grant('{role}', 'relay')");
    client.batch_execute(&grant).await.unwrap();
    let broker = Broker::default();
    broker.rule(|payload| match payload {
        "poison" => Fate::Refuse,
        "slow" => Fate::Slowly(Duration::from_millis(400)),
        _ => Fate::Take,
    });
    for payload in ["a", "poison", "slow"] {
        say(&client, None, payload).await;
    }
    // Publishing one effect takes longer than the lease, so the relay has to extend the lease.
    let relay = Running::start(quick(pool(), broker.clone()).lease(Duration::from_millis(200)));
    until_acknowledged(&client, "default").await;
    let summary = relay.stop().await;
    assert_eq!((summary.published, summary.parked), (2, 1));
}

struct Panics;

impl Publisher for Panics {
    async fn publish(&self, _: &OutgoingMessage) -> Result<(), PublishError> {
        panic!("a bug in the publisher")
    }
}

/// Goal: a panic of the publisher ends the relay with an error, and the next relay publishes the
/// effect. Invariant: I4.
#[tokio::test]
async fn i4_publisher_that_panics_ends_the_relay_with_an_error() {
    let db = Database::create();
    let client = db.client().await;
    client
        .batch_execute("SELECT idem_create_relay('two', 2, true)")
        .await
        .unwrap();
    say(&client, Some("a"), "once").await;
    let relay = Relay::new(db.pool(3), Panics).name("two");
    let ended = timeout(DEADLINE, relay.run(pending()))
        .await
        .expect("the other partition does not stop");
    let error = ended.unwrap_err();
    assert!(
        matches!(&error, Error::WorkerPanicked(text) if text == "a bug in the publisher"),
        "{error:?}"
    );
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()).name("two"));
    broker.until_taken(1).await;
    assert_eq!(
        broker.of_key("a"),
        ["once"],
        "the effect is published by the next relay"
    );
    relay.stop().await;
}
