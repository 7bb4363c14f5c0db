//! The consumer retries a failing source with back-off.

use std::future::pending;

use idem_runtime::Consumer;
use idem_testkit::{
    broker::{Broker, Failure},
    source_ended,
};
use tokio::time::Instant;

use crate::fixtures::{Fixture, in_time, message, noting};

#[tokio::test]
async fn failing_source_is_retried_with_back_off() {
    let fixture = Fixture::new().await;
    let failures = [Failure::Error, Failure::Panic, Failure::Error];
    let broker = Broker::with((0..20).map(|n| message(format!("m-{n}"), "")))
        .failing(failures)
        .closed();
    let began = Instant::now();
    let consumer =
        Consumer::new(fixture.pool.clone(), broker.clone()).handle("source-fails", noting());
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!(summary.handled, 20);
    // The source fails three times, and the consumer waits for at least 100, 200 and 400 ms.
    assert!(began.elapsed().as_millis() >= 700, "{:?}", began.elapsed());
    assert_eq!(fixture.done().await.len(), 20);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_failing_source() {
    let fixture = Fixture::new().await;
    let broker = Broker::default().failing((0..1000).map(|_| Failure::Error));
    let polled_twice = async {
        crate::fixtures::until("the source is polled twice", async || {
            broker.told().asked >= 2
        })
        .await;
    };
    let consumer =
        Consumer::new(fixture.pool.clone(), broker.clone()).handle("source-fails", noting());
    let summary = in_time(consumer.run(polled_twice)).await.unwrap();
    assert_eq!(summary, Default::default());
}
