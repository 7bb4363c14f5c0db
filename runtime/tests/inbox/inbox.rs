//! Tests of the way of a message: from the broker into the inbox, and from the inbox to the
//! handler.

use std::{future::pending, time::Duration};

use idem_runtime::{
    Consumer, Idem, Message, Policies,
    consumer::Batches,
    policy::{IdStrategy, MissingId},
};
use idem_testkit::{broker::Broker, in_time, source_ended};
use rand::seq::SliceRandom;
use tokio::time::Instant;

use crate::fixtures::{Fixture, Running, noting};

const MESSAGES: usize = 300;

fn message(n: usize) -> Message {
    Message::new("queue", "{}").with_message_id(format!("m-{n}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn message_is_stored_acknowledged_and_handled_once() {
    for batches in [1, 50] {
        let fixture = Fixture::new().await;
        let pool = fixture.db.pool(12);
        // The broker delivers every third message twice.
        let mut all: Vec<_> = (0..MESSAGES)
            .chain((0..MESSAGES).step_by(3))
            .map(message)
            .collect();
        all.shuffle(&mut rand::rng());
        let sent = all.len();
        let broker = Broker::with(all).closed();
        let storing = Consumer::new(pool.clone(), broker.clone())
            .store(fixture.to.as_str())
            .batches(Batches::new(batches).linger(Duration::from_millis(5)));
        let summary = source_ended(in_time(storing.run(pending())).await);
        assert_eq!(
            (summary.handled, summary.duplicates),
            (MESSAGES as u64, (sent - MESSAGES) as u64)
        );
        assert_eq!(broker.told().acknowledged.len(), sent);
        assert_eq!(
            fixture.left().await,
            MESSAGES as i64,
            "the messages are stored and not yet handled"
        );

        let consumer = Running::start(
            fixture
                .consumer(&pool)
                .handle(fixture.to.as_str(), noting()),
        );
        fixture.until_done(MESSAGES).await;
        fixture.until_empty().await;
        let summary = consumer.stop().await;
        assert_eq!(
            (summary.handled, summary.failed_settlements),
            (MESSAGES as u64, 0)
        );
        let mut done = fixture.done().await;
        done.sort();
        let mut expected: Vec<_> = (0..MESSAGES).map(|n| format!("m-{n}")).collect();
        expected.sort();
        assert_eq!(done, expected);
        // The claims are retained, so a message that the broker delivers once more is a duplicate.
        let again = Consumer::new(pool.clone(), Broker::with([message(0)]).closed())
            .store(fixture.to.as_str());
        assert_eq!(
            source_ended(in_time(again.run(pending())).await).duplicates,
            1
        );
    }
}

#[tokio::test]
async fn inbox_keeps_the_id_of_the_storing_consumer() {
    let fixture = Fixture::new().await;
    let pool = fixture.db.pool(6);
    let idem = || {
        let policies = Policies::default().destination(fixture.to.as_str(), |policy| {
            policy.id = IdStrategy::Coordinates;
            policy.missing_id = MissingId::Reject;
        });
        Idem::builder().policies(policies).build().unwrap()
    };
    let at = idem_runtime::transport::Coordinates::new("queue", 0, 7);
    // The id is stored with the message. It could not be computed later, because a message from the
    // inbox has no coordinates.
    let broker = Broker::with([message(1).with_coordinates(at), message(2)]).closed();
    let storing = Consumer::new(pool.clone(), broker.clone())
        .idem(idem())
        .store(fixture.to.as_str());
    let summary = source_ended(in_time(storing.run(pending())).await);
    assert_eq!(
        (summary.handled, summary.rejected),
        (1, 1),
        "the second message has no id"
    );
    let consumer = Running::start(
        fixture
            .consumer(&pool)
            .idem(idem())
            .handle(fixture.to.as_str(), noting()),
    );
    fixture.until_empty().await;
    consumer.stop().await;
    assert_eq!(fixture.done().await, ["queue:0:7"]);
}

#[tokio::test]
async fn empty_key_and_type_of_a_broker_message_are_null() {
    let fixture = Fixture::new().await;
    let pool = fixture.db.pool(6);
    let empty = message(1).with_key("").with_type("").with_content_type("");
    let broker = Broker::with([empty, message(2).with_key("")]).closed();
    let storing = Consumer::new(pool, broker).store(fixture.to.as_str());
    let summary = source_ended(in_time(storing.run(pending())).await);
    assert_eq!((summary.handled, summary.rejected), (2, 0));
    assert_eq!(fixture.count("order_key IS NULL").await, 2);
}

#[tokio::test]
async fn acknowledgement_completes_message_claimed_elsewhere() {
    let fixture = Fixture::new().await;
    let pool = fixture.db.pool(6);
    fixture.receive("m", "").await;
    // The handler claims the message for another destination. This claim does not complete the
    // message in the inbox, so the acknowledgement must complete it.
    let consumer = Running::start(fixture.consumer(&pool).handle("tests.other", noting()));
    fixture.until_empty().await;
    let summary = consumer.stop().await;
    assert_eq!((summary.handled, summary.failed_settlements), (1, 0));
    assert_eq!(fixture.done().await, ["m"]);
    let claims = "SELECT destination FROM idem.inbox ORDER BY 1";
    let claims: Vec<String> = fixture
        .client
        .query(claims, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(claims, ["tests.inbox", "tests.other"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn receive_wakes_an_idle_consumer() {
    let fixture = Fixture::new().await;
    let pool = fixture.db.pool(6);
    let consumer = Running::start(
        fixture
            .consumer(&pool)
            .handle(fixture.to.as_str(), noting()),
    );
    let mut took = Vec::new();
    for n in 0..15 {
        // Let the source become idle: it then waits at the server until a commit wakes it. The
        // pause varies, so that messages arrive at different moments of this wait.
        tokio::time::sleep(Duration::from_millis(100 + 70 * (n % 5))).await;
        let received = Instant::now();
        fixture.receive(&format!("m-{n}"), "").await;
        fixture.until_done(n as usize + 1).await;
        took.push(received.elapsed());
    }
    consumer.stop().await;
    took.sort();
    assert!(
        took[7] < Duration::from_millis(250),
        "idle consumers were not woken: {took:?}"
    );
}
