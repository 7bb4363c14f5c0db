//! A relay limits the bytes that all its partitions together hold in memory.

use std::time::Duration;

use idem_testkit::Database;

use crate::{
    broker::{Broker, Fate},
    fixtures::{Running, quick, say, split, until_acknowledged},
};

/// Goal: memory does not grow with the number of partitions. Each partition may hold an equal share
/// of the limit. In this test, the share is large enough for one effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_share_the_bytes_that_a_process_holds() {
    const PARTITIONS: usize = 8;
    const EFFECTS: usize = 80;
    let db = Database::create();
    let client = db.client().await;
    split(&client, PARTITIONS as i32).await;
    let large = "x".repeat(100_000);
    for number in 0..EFFECTS {
        say(
            &client,
            Some(&format!("key-{number}")),
            &format!("{number}-{large}"),
        )
        .await;
    }
    let broker = Broker::default();
    broker.rule(|_| Fate::Slowly(Duration::from_millis(50)));
    let relay = quick(db.pool(4), broker.clone())
        .name("split")
        .max_held_bytes(1024 * 1024);
    let relay = Running::start(relay);
    until_acknowledged(&client, "split").await;
    relay.stop().await;
    assert_eq!(broker.taken().len(), EFFECTS);
    let most = broker.most_under_way();
    assert!(
        most <= PARTITIONS,
        "{most} effects of 100 kB were held at once"
    );
}
