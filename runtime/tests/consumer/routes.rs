//! Tests which route, and so which handler, is selected for a message.

use std::future::pending;

use idem_runtime::{Consumer, Message, consumer::Selector};
use idem_testkit::{broker::Broker, source_ended};

use crate::fixtures::{Fixture, in_time, message, noting};

/// Returns the claims of this database, each as `destination id`.
async fn claims(fixture: &Fixture) -> Vec<String> {
    let client = fixture.pool.get().await.unwrap();
    let rows = client
        .query_typed(
            "SELECT destination || ' ' || id FROM idem.inbox ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn first_matching_route_handles_a_message() {
    let fixture = Fixture::new().await;
    let fire = |message: &Message| message.message_type() == Some("Fire");
    let broker = Broker::with([
        message("1", "").with_type("Fire"),
        message("2", "").with_type("Reserve"),
        Message::new("refunds", "{}")
            .with_message_id("3")
            .with_type("Reserve"),
        Message::new("refunds", "{}").with_message_id("4"),
        message("5", "").with_type("Fire"),
        message("6", "").with_type("Other"),
        message("7", ""),
    ])
    .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(Selector::message_type("Reserve"), "reserve", noting())
        .route(Selector::matching(fire), "fire", noting())
        .route(Selector::topic("refunds"), "refund", noting())
        .route(Selector::matching(fire), "never", noting())
        .handle("fallback", noting());
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!((summary.handled, summary.rejected), (7, 0));
    let expected = [
        "fallback 6",
        "fallback 7",
        "fire 1",
        "fire 5",
        "refund 4",
        "reserve 2",
        "reserve 3",
    ];
    assert_eq!(claims(&fixture).await, expected);
}

#[tokio::test]
async fn message_without_a_route_is_rejected() {
    let fixture = Fixture::new().await;
    let broker =
        Broker::with([message("taken", "").with_type("Fire"), message("left", "")]).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).route(
        Selector::message_type("Fire"),
        "fire",
        noting(),
    );
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!((summary.handled, summary.rejected), (1, 1));
    let [(id, reason)] = &broker.told().rejected[..] else {
        panic!("not one rejected message: {:?}", broker.told());
    };
    assert_eq!(id, "left");
    assert!(reason.contains("route"), "{reason}");
    assert_eq!(claims(&fixture).await, ["fire taken"]);
}
