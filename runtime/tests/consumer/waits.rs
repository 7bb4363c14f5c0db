//! Every wait of the consumer has a time limit.

use std::{future::pending, time::Duration};

use idem_runtime::Consumer;
use idem_testkit::broker::Broker;

use crate::fixtures::{Fixture, message, noting, until};

/// A worker does not wait forever for a broker that never confirms a settlement. It drops the
/// receipt, so the broker redelivers the message.
#[tokio::test]
async fn unconfirmed_settlement_times_out() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m-1", "")]).mute();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("waits", noting())
        .concurrency(1);
    let running = tokio::spawn(consumer.run(pending()));
    until("the message is handled", async || {
        fixture.done().await == ["m-1"]
    })
    .await;
    until("the settlement has timed out", async || {
        // The settlement may not have begun yet, so advance the time repeatedly.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11 * 60)).await;
        tokio::time::resume();
        broker.told().dropped.first().is_some_and(|id| id == "m-1")
    })
    .await;
    running.abort();
    assert_eq!(fixture.done().await, ["m-1"]);
}
