//! Each message takes effect once, and invalid settings of a consumer are errors.

use std::future::pending;

use idem_runtime::{Consumer, Message, consumer::Selector};
use idem_testkit::{broker::Broker, source_ended};
use rand::{RngExt, seq::SliceRandom};

use crate::fixtures::{Fixture, in_time, message, noting};

const MESSAGES: usize = 500;

/// Returns all messages in random order. About three of ten messages appear twice.
fn with_duplicates() -> Vec<Message> {
    let mut rng = rand::rng();
    let mut all: Vec<Message> = (0..MESSAGES)
        .map(|n| message(format!("m-{n}"), ""))
        .collect();
    for n in 0..MESSAGES {
        if rng.random_bool(0.3) {
            all.push(message(format!("m-{n}"), ""));
        }
    }
    all.shuffle(&mut rng);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn message_delivered_twice_takes_effect_once() {
    let fixture = Fixture::new().await;
    let all = with_duplicates();
    let sent = all.len();
    let broker = Broker::with(all).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("once", noting())
        .concurrency(8);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    let mut done = fixture.done().await;
    done.sort();
    let mut expected: Vec<String> = (0..MESSAGES).map(|n| format!("m-{n}")).collect();
    expected.sort();
    assert_eq!(done, expected);
    assert_eq!(summary.handled, MESSAGES as u64);
    assert_eq!(summary.duplicates, (sent - MESSAGES) as u64);
    assert_eq!(broker.told().acknowledged.len(), sent);
    assert!(
        broker.told().most_unsettled <= 8,
        "{}",
        broker.told().most_unsettled
    );
}

#[tokio::test]
async fn consumer_with_invalid_settings_fetches_nothing() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]);
    let consumer = || Consumer::new(fixture.pool.clone(), broker.clone());
    for (consumer, hint) in [
        (consumer(), "handler"),
        (
            consumer().handle("a", noting()).handle("b", noting()),
            "\"a\" and \"b\"",
        ),
        (
            consumer().handle("a", noting()).store("b"),
            "\"a\" and \"b\"",
        ),
        (
            consumer()
                .route(Selector::topic("t"), "a", noting())
                .store_route(Selector::topic("t"), "b"),
            "topic \"t\": \"a\" and \"b\"",
        ),
        (
            consumer()
                .store_route(Selector::message_type("t"), "a")
                .route(Selector::message_type("t"), "b", noting()),
            "type \"t\": \"a\" and \"b\"",
        ),
        (consumer().handle("", noting()), "destination"),
        (
            consumer().handle("to", noting()).concurrency(0),
            "concurrency",
        ),
        (
            consumer().handle("to", noting()).max_deliveries(0),
            "max_deliveries",
        ),
    ] {
        let error = in_time(consumer.run(pending())).await.unwrap_err();
        assert_eq!(error.kind(), idem_client::ErrorKind::Invalid);
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert_eq!(broker.told().asked, 0);
}
