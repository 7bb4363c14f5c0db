//! The consumer retries a failing source with back-off.

use std::future::pending;

use idem_runtime::Consumer;
use idem_testkit::{
    broker::{Broker, Failure},
    log::Log,
    source_ended,
};
use tokio::time::Instant;
use tracing::Level;

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

/// Goal: a cause that does not go away is logged once. Invariant: I4.
#[tokio::test]
async fn i4_repeated_failure_of_the_source_is_one_warning() {
    let (log, _guard) = Log::keep();
    let fixture = Fixture::new().await;
    let failures = [Failure::Error, Failure::Error, Failure::Error];
    let broker = Broker::with([message("m-1", "")])
        .failing(failures)
        .closed();
    let consumer =
        Consumer::new(fixture.pool.clone(), broker.clone()).handle("source-fails", noting());
    source_ended(in_time(consumer.run(pending())).await);
    let warnings = log.lines(Level::WARN, "the source failed");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    let infos = log.lines(Level::INFO, "the source delivers again");
    assert_eq!(infos.len(), 1, "{infos:#?}");
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
