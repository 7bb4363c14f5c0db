//! Every wait has an end.

use std::{future::pending, time::Duration};

use idem_client::Consumer;

use crate::{
    broker::Broker,
    ground::{Ground, message, noting, until},
};

/// A broker that never confirms keeps no worker: the message is dropped, and comes again.
#[tokio::test]
async fn settlement_that_is_never_confirmed_is_given_up() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m-1", "")]).mute();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("waits", noting())
        .concurrency(1);
    let running = tokio::spawn(consumer.run(pending()));
    until("it is handled", async || ground.done().await == ["m-1"]).await;
    until("its settlement is given up", async || {
        // The settlement may begin only now, so time passes more than once.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11 * 60)).await;
        tokio::time::resume();
        broker.told().dropped.first().is_some_and(|id| id == "m-1")
    })
    .await;
    running.abort();
    assert_eq!(ground.done().await, ["m-1"]);
}
