//! Several processes of one relay share its partitions, and another process continues after a
//! crash.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use idem_testkit::{Database, log::Log, until};
use tracing::Level;

use crate::{
    broker::{Broker, Fate},
    fixtures::{Running, parked, quick, rounds, say, say_rounds, split, until_acknowledged},
};

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Removes repeated payloads. Returns the payloads in the order of their first publication.
fn first_occurrences(payloads: Vec<String>) -> Vec<String> {
    let mut first_occurrences: Vec<String> = Vec::new();
    for payload in payloads {
        if !first_occurrences.contains(&payload) {
            first_occurrences.push(payload);
        }
    }
    first_occurrences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_partitions_and_replace_a_crashed_process() {
    const ROUNDS: usize = 25;
    let db = Database::create();
    let mut client = db.client().await;
    split(&client, 4).await;
    let broker = Broker::default();
    let relay = |broker: &Broker| {
        let relay = quick(db.pool(3), broker.clone());
        Running::start(relay.name("split").batch(10).lease(Duration::from_secs(1)))
    };
    // The broker of the first process confirms some effects and then stops responding, so the
    // process is killed in the middle of a batch.
    let dying = Broker::default();
    let confirmed = AtomicUsize::new(0);
    dying.rule(move |_| {
        if confirmed.fetch_add(1, Ordering::SeqCst) < 7 {
            Fate::Take
        } else {
            Fate::Silence
        }
    });
    say_rounds(&mut client, &KEYS, ROUNDS).await;
    let first = relay(&dying);
    dying.until_taken(7).await;
    // Start the second process only when the first process has leased all partitions. Earlier, the
    // second process could publish all effects of a partition, and such a partition has no lease.
    until_leased(&client).await;
    let second = relay(&broker);
    first.kill().await;
    until_acknowledged(&client, "split").await;

    // The second and a third process run at the same time, until each of them has published
    // effects.
    let third_broker = Broker::default();
    for broker in [&broker, &third_broker] {
        broker.rule(|_| Fate::Slowly(Duration::from_millis(20)));
    }
    let third = relay(&third_broker);
    let sent = Arc::new(AtomicUsize::new(ROUNDS));
    until("both processes publish", async || {
        let round = sent.fetch_add(1, Ordering::SeqCst);
        for key in KEYS {
            say(&client, Some(key), &format!("{key}-{round}")).await;
        }
        until_acknowledged(&client, "split").await;
        !third_broker.taken().is_empty() && broker.taken().len() > KEYS.len()
    })
    .await;
    third.stop().await;
    second.stop().await;

    // Effects that the killed process published but did not acknowledge were published again. No
    // effect is missing.
    let rounds_in_all = sent.load(Ordering::SeqCst);
    for key in KEYS {
        let dead = dying.of_key(key);
        assert_eq!(dead, rounds(key, dead.len()), "of the first process");
        // On a busy machine, the lease of the second or the third process can expire before the
        // process has acknowledged a batch. Then the other of these two processes publishes the
        // same effects again.
        let mut living = first_occurrences([broker.of_key(key), third_broker.of_key(key)].concat());
        living.sort_by_key(|payload| payload[2..].parse::<usize>().unwrap());
        assert_eq!(living, rounds(key, rounds_in_all));
        // Each process publishes the effects of a key in order.
        for broker in [&broker, &third_broker] {
            let of_one = broker.of_key(key);
            assert!(
                of_one.is_sorted_by_key(|payload| payload[2..].parse::<usize>().unwrap()),
                "{of_one:?}"
            );
        }
    }
    assert_eq!(parked(&client).await, []);
}

/// Waits until every partition is leased.
async fn until_leased(client: &tokio_postgres::Client) {
    let leased =
        "SELECT count(*) = 4 FROM idem.relays WHERE relay = 'split' AND leased_until IS NOT NULL";
    until("all partitions are leased", async || {
        client
            .query_one(leased, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
}

/// Goal: the lease of a batch moves between two processes while the broker is unavailable. No
/// process reports in between that the broker is available. Invariant: I4.
#[tokio::test]
async fn i4_unavailable_broker_is_reported_without_flapping() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.client().await;
    let brokers = [Broker::default(), Broker::default()];
    say(&client, None, "a").await;
    let mut running = Vec::new();
    for broker in &brokers {
        broker.is_away(true);
        let relay =
            Running::start(quick(db.pool(2), broker.clone()).lease(Duration::from_millis(300)));
        let mut status = relay.status.clone();
        let seen = tokio::spawn(async move {
            let mut seen = vec![status.borrow_and_update().broker];
            while status.changed().await.is_ok() {
                let now = status.borrow_and_update().broker;
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
            }
            seen
        });
        running.push((relay, seen));
    }
    // Only one process has the lease at a time, and it tries its broker.
    let holders = "SELECT count(*) >= 4 FROM idem.progress WHERE leased_until IS NOT NULL";
    until("the lease has moved between the processes", async || {
        brokers.iter().all(|broker| broker.attempts("a") >= 3)
            && client.query_one(holders, &[]).await.unwrap().get(0)
    })
    .await;
    for (relay, _) in &running {
        assert_eq!(relay.status.borrow().broker, Some(false));
    }
    let warnings = log.lines(Level::WARN, "the broker is not available");
    assert_eq!(
        warnings.len(),
        2,
        "one warning of each process: {warnings:#?}"
    );
    for broker in &brokers {
        broker.is_away(false);
    }
    until_acknowledged(&client, "default").await;
    for (relay, seen) in running {
        until("the broker is not unavailable", async || {
            relay.status.borrow().broker != Some(false)
        })
        .await;
        relay.stop().await;
        let seen = seen.await.unwrap();
        assert_eq!(seen[..2], [None, Some(false)], "{seen:?}");
        // The state becomes unknown when the other process gets the batch. It becomes available
        // when this process gets the batch again.
        assert!(
            seen.len() > 2 && !seen[2..].contains(&Some(false)),
            "{seen:?}"
        );
    }
}

/// Goal: the lease of a batch is extended while the batch is published. Publishing one effect takes
/// longer than the lease and the back-off of the second process together, and the second process
/// publishes nothing.
#[tokio::test]
async fn lease_is_extended_while_its_batch_is_published() {
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["a", "b"], 3).await;
    let (broker, other) = (Broker::default(), Broker::default());
    broker.rule(|payload| match payload {
        "a-1" => Fate::Slowly(Duration::from_secs(3)),
        _ => Fate::Take,
    });
    let start = |broker: &Broker| {
        Running::start(quick(db.pool(2), broker.clone()).lease(Duration::from_millis(800)))
    };
    let first = start(&broker);
    broker.until_taken(4).await;
    let second = start(&other);
    until_acknowledged(&client, "default").await;
    first.stop().await;
    second.stop().await;
    assert_eq!(broker.of_key("a"), rounds("a", 3));
    assert_eq!(broker.of_key("b"), rounds("b", 3));
    assert_eq!(other.taken(), []);
}

#[tokio::test]
async fn stopping_relay_finishes_and_acknowledges_its_batch() {
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["a", "b"], 3).await;
    let broker = Broker::default();
    broker.rule(|_| Fate::Slowly(Duration::from_millis(100)));
    // The lease is an hour. If the batch were not acknowledged, no other process could publish it.
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    until("the batch has begun", async || broker.attempts("a-0") == 1).await;
    let summary = relay.stop().await;
    assert_eq!(summary.published, 6);
    let lag = "SELECT lag_messages FROM idem.relays";
    assert_eq!(
        client.query_one(lag, &[]).await.unwrap().get::<_, i64>(0),
        0
    );
}

#[tokio::test]
async fn stopping_relay_releases_the_unfinished_batch() {
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["a", "b"], 2).await;
    let broker = Broker::default();
    broker.rule(|payload| match payload {
        "a-0" => Fate::Reject,
        _ => Fate::Take,
    });
    let relay = Running::start(quick(db.pool(2), broker.clone()).max_attempts(1_000_000));
    broker.until_taken(2).await;
    relay.stop().await;

    // A broker that never responds delays the stop, but only by the grace period.
    broker.rule(|_| Fate::Silence);
    let relay = Running::start(quick(db.pool(2), broker.clone()).grace(Duration::from_millis(50)));
    until("the batch has begun", async || broker.attempts("b-0") == 2).await;
    relay.stop().await;
    assert_eq!(broker.taken().len(), 2);

    let successor = Broker::default();
    let relay = Running::start(quick(db.pool(2), successor.clone()));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!(successor.of_key("a"), rounds("a", 2));
    assert_eq!(parked(&client).await, []);
}

/// Goal: a notification of a new effect wakes an idle relay. Without it, an effect would wait for
/// at least a quarter of a second on average, because an idle relay polls every 0.5 to 1 seconds.
#[tokio::test]
async fn idle_relay_is_woken_by_an_effect() {
    const EFFECTS: u32 = 8;
    let db = Database::create();
    let client = db.client().await;
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let mut waited = Duration::ZERO;
    for n in 1..=EFFECTS {
        // After this time, the delays between the polls are at their maximum.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let sent = Instant::now();
        say(&client, None, &n.to_string()).await;
        broker.until_taken(n as usize).await;
        waited += sent.elapsed();
    }
    relay.stop().await;
    assert!(waited / EFFECTS < Duration::from_millis(200), "{waited:?}");
}
