//! I4: effects that wait for a topic are not forgotten, while a broker has no place for it.

use crate::{
    broker::{Broker, Fate},
    support::Database,
    world::{Running, parked, quick, say_rounds, until_acknowledged},
};

/// Goal: the broker is lost while effects wait for a topic. Invariant: I4.
#[tokio::test]
async fn i4_lanes_that_wait_survive_probes_without_a_result() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let db = Database::create();
    let mut client = db.connect().await;
    say_rounds(&mut client, &KEYS, 2).await;
    let broker = Broker::default();
    let mut attempt = 0;
    broker.rule(move |_| {
        attempt += 1;
        match attempt {
            1..=4 => Fate::NoPlace,
            5..=7 => Fate::Unavailable,
            8 => Fate::NoPlace,
            9 | 10 => Fate::Unavailable,
            _ => Fate::Take,
        }
    });
    // The lease is an hour: no other batch brings an effect that this one forgets.
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    broker.until_taken(2 * KEYS.len()).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    for key in KEYS {
        assert_eq!(broker.of_key(key), [format!("{key}-0"), format!("{key}-1")], "each once");
    }
    assert_eq!(broker.overlaps(), [""; 0]);
    assert_eq!(parked(&client).await, []);
}
