//! A source that fails is asked again, and not in a busy loop.

use std::future::pending;

use idem_client::Consumer;
use tokio::time::Instant;

use crate::{
    broker::{Broker, Failure},
    ground::{Ground, in_time, message, noting},
    support::source_ended,
};

#[tokio::test]
async fn a_source_that_fails_is_asked_again_with_pauses() {
    let ground = Ground::new().await;
    let failures = [Failure::Error, Failure::Panic, Failure::Error];
    let broker = Broker::with((0..20).map(|n| message(format!("m-{n}"), "")))
        .failing(failures)
        .closed();
    let began = Instant::now();
    let consumer =
        Consumer::new(ground.pool.clone(), broker.clone()).handle("source-fails", noting());
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!(summary.handled, 20);
    // 100, 200 and 400 ms at least.
    assert!(began.elapsed().as_millis() >= 700, "{:?}", began.elapsed());
    assert_eq!(ground.done().await.len(), 20);
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_source_that_fails() {
    let ground = Ground::new().await;
    let broker = Broker::default().failing((0..1000).map(|_| Failure::Error));
    let asked_twice = async {
        crate::ground::until("the source is asked twice", async || {
            broker.told().asked >= 2
        })
        .await;
    };
    let consumer =
        Consumer::new(ground.pool.clone(), broker.clone()).handle("source-fails", noting());
    let summary = in_time(consumer.run(asked_twice)).await.unwrap();
    assert_eq!(summary, Default::default());
}
