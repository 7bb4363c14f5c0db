//! The relay publishes all effects, and publishes the effects of one key in their order.

use std::{collections::HashSet, time::Duration};

use idem_testkit::Database;

use crate::{
    broker::{Broker, Fate},
    fixtures::{Running, parked, quick, rounds, say, say_rounds, split, until_acknowledged},
};

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_are_published_once_and_in_the_order_of_their_key() {
    const ROUNDS: usize = 40;
    let db = Database::create();
    let mut client = db.client().await;
    split(&client, 3).await;
    let broker = Broker::default();
    let mut n = 0u64;
    broker.rule(move |_| {
        n += 1;
        Fate::Slowly(Duration::from_millis(n % 5))
    });
    // Some effects are sent before the relay starts, and some while it runs.
    say_rounds(&mut client, &KEYS, ROUNDS).await;
    let relay = Running::start(quick(db.pool(4), broker.clone()).name("split").batch(50));
    for n in 0..20 {
        say(&client, None, &format!("free-{n}")).await;
    }
    broker.until_taken(KEYS.len() * ROUNDS + 20).await;
    until_acknowledged(&client, "split").await;
    let summary = relay.stop().await;

    let taken = broker.taken();
    assert_eq!(taken.len(), KEYS.len() * ROUNDS + 20);
    assert_eq!(summary.published as usize, taken.len());
    let ids: HashSet<_> = taken.iter().map(|taken| taken.id).collect();
    assert_eq!(ids.len(), taken.len(), "each effect is published once");
    for key in KEYS {
        assert_eq!(broker.of_key(key), rounds(key, ROUNDS));
    }
    assert_eq!(broker.overlaps(), Vec::<String>::new());
    assert!(
        broker.most_under_way() > 1,
        "effects of different keys do not overlap"
    );
    assert_eq!(parked(&client).await, []);
}

#[tokio::test]
async fn in_flight_limits_the_concurrent_effects() {
    let db = Database::create();
    let client = db.client().await;
    for n in 0..50 {
        say(&client, None, &n.to_string()).await;
    }
    let broker = Broker::default();
    broker.rule(|_| Fate::Slowly(Duration::from_millis(2)));
    let relay = Running::start(quick(db.pool(2), broker.clone()).in_flight(5));
    broker.until_taken(50).await;
    relay.stop().await;
    assert_eq!(broker.most_under_way(), 5);
}

#[tokio::test]
async fn rejected_effect_delays_only_its_key() {
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["a", "b"], 3).await;
    let broker = Broker::default();
    let mut others = 0;
    broker.rule(move |payload| {
        // The effect `a-0` is rejected until the last effect of the key `b` is being published.
        others += usize::from(payload.starts_with('b'));
        match payload {
            "a-0" if others < 3 => Fate::Reject,
            "b-2" => Fate::Slowly(Duration::from_millis(100)),
            _ => Fate::Take,
        }
    });
    let relay = Running::start(quick(db.pool(2), broker.clone()).max_attempts(1_000_000));
    broker.until_taken(6).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert!(broker.attempts("a-0") > 1, "the effect was not retried");
    assert_eq!(broker.of_key("a"), rounds("a", 3));
    assert_eq!(broker.of_key("b"), rounds("b", 3));
    assert_eq!(broker.attempts("a-1"), 1);
    assert_eq!(parked(&client).await, []);
}

/// Goal: a limit in bytes ends a batch. With a limit of one byte, a batch contains one effect.
/// Effects overlap only within a batch, so no two effects overlap.
#[tokio::test]
async fn batch_of_the_relay_is_bounded_in_bytes() {
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &KEYS, 2).await;
    let broker = Broker::default();
    broker.rule(|_| Fate::Slowly(Duration::from_millis(5)));
    let relay = Running::start(quick(db.pool(2), broker.clone()).max_bytes(1));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!((broker.taken().len(), broker.most_under_way()), (12, 1));
}
