//! Several processes work for one relay, die, and are relieved.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tracing::Level;

use crate::{
    broker::{Broker, Fate},
    log::Log,
    support::{Database, until},
    world::{Running, parked, quick, rounds, say, say_rounds, split, until_acknowledged},
};

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// The order in which things were published first.
fn firsts(says: Vec<String>) -> Vec<String> {
    let mut firsts: Vec<String> = Vec::new();
    for says in says {
        if !firsts.contains(&says) {
            firsts.push(says);
        }
    }
    firsts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_the_partitions_and_take_over_from_one_that_dies() {
    const ROUNDS: usize = 25;
    let db = Database::create();
    let mut client = db.connect().await;
    split(&client, 4).await;
    let broker = Broker::default();
    let relay = |broker: &Broker| {
        let relay = quick(db.pool(3), broker.clone());
        Running::start(relay.name("split").batch(10).lease(Duration::from_secs(1)))
    };
    // Its broker confirms some of each batch and then nothing more: it dies in the middle of one.
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
    // Before the second starts: a partition that the second gets is drained, and its lease ends
    // with that.
    until_leased(&client).await;
    let second = relay(&broker);
    first.kill().await;
    until_acknowledged(&client, "split").await;

    // Two that work side by side: each has something to do.
    let third_broker = Broker::default();
    for broker in [&broker, &third_broker] {
        broker.rule(|_| Fate::Slowly(Duration::from_millis(20)));
    }
    let third = relay(&third_broker);
    let sent = Arc::new(AtomicUsize::new(ROUNDS));
    until("both publish", async || {
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

    // What the dead one had published and not acknowledged was published again, and nothing is
    // missing.
    let rounds_in_all = sent.load(Ordering::SeqCst);
    for key in KEYS {
        let dead = dying.of_key(key);
        assert_eq!(dead, rounds(key, dead.len()), "of the first");
        // On a busy machine a lease can run out between the living too, and its effects are
        // published by both.
        let mut living = firsts([broker.of_key(key), third_broker.of_key(key)].concat());
        living.sort_by_key(|says| says[2..].parse::<usize>().unwrap());
        assert_eq!(living, rounds(key, rounds_in_all));
        // Each of them in order.
        for broker in [&broker, &third_broker] {
            let of_one = broker.of_key(key);
            assert!(
                of_one.is_sorted_by_key(|says| says[2..].parse::<usize>().unwrap()),
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
        client.query_one(leased, &[]).await.unwrap().get(0)
    })
    .await;
}

/// Goal: the lease of a batch changes hands while the broker is away, and no process reports that
/// it is back. Invariant: I4.
#[tokio::test]
async fn i4_broker_that_is_away_is_reported_without_flapping() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.connect().await;
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
    // The lease has one holder at a time, and each holder asks its broker.
    let holders = "SELECT count(*) >= 4 FROM idem.progress WHERE leased_until IS NOT NULL";
    until("the lease changed hands", async || {
        brokers.iter().all(|broker| broker.attempts("a") >= 3)
            && client.query_one(holders, &[]).await.unwrap().get(0)
    })
    .await;
    for (relay, _) in &running {
        assert_eq!(relay.status.borrow().broker, Some(false));
    }
    let warnings = log.lines(Level::WARN, "the broker is not available");
    assert_eq!(warnings.len(), 2, "one of each process: {warnings:#?}");
    for broker in &brokers {
        broker.is_away(false);
    }
    until_acknowledged(&client, "default").await;
    for (relay, seen) in running {
        until("it is not away any more", async || {
            relay.status.borrow().broker != Some(false)
        })
        .await;
        relay.stop().await;
        let seen = seen.await.unwrap();
        assert_eq!(seen[..2], [None, Some(false)], "{seen:?}");
        // Unknown, when the other one has the batch; and available, when this one gets it once
        // more.
        assert!(
            seen.len() > 2 && !seen[2..].contains(&Some(false)),
            "{seen:?}"
        );
    }
}

/// One effect takes longer than the lease and than the other's pauses together, and nobody
/// overtakes.
#[tokio::test]
async fn a_lease_is_extended_while_its_batch_is_worked_on() {
    let db = Database::create();
    let mut client = db.connect().await;
    say_rounds(&mut client, &["a", "b"], 3).await;
    let (broker, other) = (Broker::default(), Broker::default());
    broker.rule(|says| match says {
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
async fn who_is_told_to_stop_finishes_its_batch_and_acknowledges_it() {
    let db = Database::create();
    let mut client = db.connect().await;
    say_rounds(&mut client, &["a", "b"], 3).await;
    let broker = Broker::default();
    broker.rule(|_| Fate::Slowly(Duration::from_millis(100)));
    // The lease is an hour: who did not acknowledge would keep everybody waiting.
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    until("it has begun", async || broker.attempts("a-0") == 1).await;
    let summary = relay.stop().await;
    assert_eq!(summary.published, 6);
    let lag = "SELECT lag_messages FROM idem.relays";
    assert_eq!(
        client.query_one(lag, &[]).await.unwrap().get::<_, i64>(0),
        0
    );
}

#[tokio::test]
async fn who_is_told_to_stop_gives_back_what_it_cannot_finish() {
    let db = Database::create();
    let mut client = db.connect().await;
    say_rounds(&mut client, &["a", "b"], 2).await;
    let broker = Broker::default();
    broker.rule(|says| match says {
        "a-0" => Fate::Reject,
        _ => Fate::Take,
    });
    let relay = Running::start(quick(db.pool(2), broker.clone()).max_attempts(1_000_000));
    broker.until_taken(2).await;
    relay.stop().await;

    // And what never answers is not waited for beyond the grace.
    broker.rule(|_| Fate::Silence);
    let relay = Running::start(quick(db.pool(2), broker.clone()).grace(Duration::from_millis(50)));
    until("it has begun", async || broker.attempts("b-0") == 2).await;
    relay.stop().await;
    assert_eq!(broker.taken().len(), 2);

    let heir = Broker::default();
    let relay = Running::start(quick(db.pool(2), heir.clone()));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!(heir.of_key("a"), rounds("a", 2));
    assert_eq!(parked(&client).await, []);
}

/// Who is idle looks every half second or second: an effect would wait for a quarter of a second at
/// least, on average.
#[tokio::test]
async fn an_idle_relay_is_woken() {
    const EFFECTS: u32 = 8;
    let db = Database::create();
    let client = db.connect().await;
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let mut waited = Duration::ZERO;
    for n in 1..=EFFECTS {
        // Its pauses have become as long as they get.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let sent = Instant::now();
        say(&client, None, &n.to_string()).await;
        broker.until_taken(n as usize).await;
        waited += sent.elapsed();
    }
    relay.stop().await;
    assert!(waited / EFFECTS < Duration::from_millis(200), "{waited:?}");
}
