//! Each message takes effect once.

use std::future::pending;

use idem_client::{Consumer, Message};
use rand::{RngExt, seq::SliceRandom};

use crate::{
    broker::Broker,
    ground::{Ground, in_time, message, noting},
};

const MESSAGES: usize = 500;

/// Every message, three of ten of them twice, in any order.
fn with_duplicates() -> Vec<Message> {
    let mut rng = rand::rng();
    let mut all: Vec<Message> = (0..MESSAGES).map(|n| message(format!("m-{n}"), "")).collect();
    for n in 0..MESSAGES {
        if rng.random_bool(0.3) {
            all.push(message(format!("m-{n}"), ""));
        }
    }
    all.shuffle(&mut rng);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_delivered_twice_takes_effect_once() {
    let ground = Ground::new().await;
    let all = with_duplicates();
    let sent = all.len();
    let broker = Broker::with(all).closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("once", noting())
        .concurrency(8);
    let summary = in_time(consumer.run(pending())).await.unwrap();

    let mut done = ground.done().await;
    done.sort();
    let mut expected: Vec<String> = (0..MESSAGES).map(|n| format!("m-{n}")).collect();
    expected.sort();
    assert_eq!(done, expected);
    assert_eq!(summary.handled, MESSAGES as u64);
    assert_eq!(summary.duplicates, (sent - MESSAGES) as u64);
    assert_eq!(broker.told().acknowledged.len(), sent);
    assert!(broker.told().most_unsettled <= 8, "{}", broker.told().most_unsettled);
}

#[tokio::test]
async fn a_message_is_handled_by_the_first_route_that_matches() {
    let ground = Ground::new().await;
    let messages = ["Fire", "Reserve", "Fire", "Other"];
    let messages = messages
        .iter()
        .enumerate()
        .map(|(n, kind)| message(format!("{kind}-{n}"), "").with_type(*kind));
    let broker = Broker::with(messages).closed();
    let of = |kind: &'static str| move |message: &Message| message.message_type() == Some(kind);
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .route(of("Fire"), "range.fire", noting())
        .route(of("Reserve"), "range.reserve", noting())
        .route(of("Fire"), "range.never", noting());
    let summary = in_time(consumer.run(pending())).await.unwrap();

    assert_eq!((summary.handled, summary.rejected), (3, 1));
    let [(id, reason)] = &broker.told().rejected[..] else {
        panic!("one is refused: {:?}", broker.told());
    };
    assert_eq!(id, "Other-3");
    assert!(reason.contains("route"), "{reason}");
    let client = ground.pool.get().await.unwrap();
    let rows = client
        .query_typed("SELECT destination || ' ' || id FROM idem.inbox ORDER BY 1", &[])
        .await
        .unwrap();
    let claims: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(claims, ["range.fire Fire-0", "range.fire Fire-2", "range.reserve Reserve-1"]);
}

#[tokio::test]
async fn a_consumer_that_cannot_work_fetches_nothing() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")]);
    let consumer = || Consumer::new(ground.pool.clone(), broker.clone());
    for (consumer, hint) in [
        (consumer(), "handler"),
        (consumer().handle("", noting()), "destination"),
        (consumer().handle("to", noting()).concurrency(0), "concurrency"),
        (consumer().handle("to", noting()).max_deliveries(0), "max_deliveries"),
    ] {
        let error = in_time(consumer.run(pending())).await.unwrap_err();
        assert_eq!(error.kind(), idem_client::ErrorKind::Invalid);
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert_eq!(broker.told().asked, 0);
}
