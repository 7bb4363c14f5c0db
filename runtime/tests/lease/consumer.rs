//! Tests of a consumer with leased or checked handlers.

use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, Mutex},
};

use idem_runtime::{Consumer, Message, lease::LeaseContext};
use idem_testkit::{
    broker::{Broker, id},
    in_time, source_ended,
};

use crate::fixtures::{DESTINATION, Fixture, fact, idem, message};

type Seen = Arc<Mutex<HashMap<String, usize>>>;

fn count_attempt(seen: &Seen, message: &Message) -> usize {
    let mut seen = seen.lock().unwrap();
    let times = seen.entry(id(message)).or_default();
    *times += 1;
    *times
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_handled_once_and_poisoned_are_dead_letters() {
    let fixture = Fixture::new().await;
    fixture.attempts(3).await;
    let good: Vec<Message> = (0..40).map(|_| message()).collect();
    let weak = message().with_header("fails", "once");
    let panicking = message().with_header("fails", "panic");
    let poisoned = message().with_header("fails", "always");
    let terminal = message().with_header("fails", "terminal");
    let all = [
        &good[..],
        &good[..10],
        &[
            weak.clone(),
            panicking.clone(),
            poisoned.clone(),
            terminal.clone(),
        ],
    ]
    .concat();
    let sent = all.len();
    let broker = Broker::with(all).counting().closed();
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .max_deliveries(1)
        .handle_leased(DESTINATION, move |_: LeaseContext, message: Message| {
            let seen = Arc::clone(&noted);
            async move {
                match (message.header("fails"), count_attempt(&seen, &message)) {
                    (Some("once"), 1) => Err("out of stock".into()),
                    (Some("panic"), 1) => panic!("a bug"),
                    (Some("always"), _) => Err("poison".into()),
                    (Some("terminal"), _) => Err(idem_runtime::HandlerError::terminal("never")),
                    _ => Ok(vec![fact()]),
                }
            }
        });
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!((summary.handled, summary.rejected), (42, 2), "{summary:?}");
    for message in good.iter().chain([&weak, &panicking]) {
        fixture.assert_done_once(message).await;
    }
    let times = seen.lock().unwrap().clone();
    assert!(
        good.iter().all(|message| times[&id(message)] == 1),
        "{times:?}"
    );
    assert_eq!((times[&id(&weak)], times[&id(&panicking)]), (2, 2));
    assert_eq!((times[&id(&poisoned)], times[&id(&terminal)]), (3, 1));
    let record = broker.told();
    assert_eq!(
        (record.acknowledged.len(), record.rejected.len()),
        (sent, 0),
        "{record:?}"
    );
    for message in [&poisoned, &terminal] {
        fixture.assert_undone(message).await;
        let sql = "SELECT count(*) FROM idem.dead_letter WHERE id = $1";
        let row = fixture
            .observer
            .query_one(sql, &[&message.message_id()])
            .await
            .unwrap();
        assert_eq!(row.get::<_, i64>(0), 1);
    }
    assert_eq!(
        fixture.count("SELECT count(*) FROM idem.dead_letter").await,
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_of_one_destination_handle_a_message_once() {
    let fixture = Fixture::new().await;
    let messages: Vec<Message> = (0..60).map(|_| message()).collect();
    let seen = Seen::default();
    let consumer = || {
        let seen = Arc::clone(&seen);
        // The broker of each consumer delivers all messages.
        let broker = Broker::with(messages.clone()).closed();
        Consumer::new(fixture.pool.clone(), broker).handle_leased(
            DESTINATION,
            move |_: LeaseContext, message: Message| {
                count_attempt(&seen, &message);
                async { Ok(vec![fact()]) }
            },
        )
    };
    let (one, other) =
        in_time(async { tokio::join!(consumer().run(pending()), consumer().run(pending())) }).await;
    let (one, other) = (source_ended(one), source_ended(other));
    assert_eq!(one.handled + other.handled, 60);
    assert_eq!(one.duplicates + other.duplicates, 60);
    assert!(seen.lock().unwrap().values().all(|times| *times == 1));
}

/// Goal: if a handler does not support its policy, the consumer fails before it fetches a message.
#[tokio::test]
async fn unsupported_policy_fails_before_the_first_fetch() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message()]);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .idem(idem(|policy| policy.fingerprint = true))
        .handle_leased(DESTINATION, async |_: LeaseContext, _: Message| Ok(vec![]));
    let error = in_time(consumer.run(pending())).await.unwrap_err();
    assert!(error.to_string().contains("fingerprint"), "{error}");
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .idem(idem(|policy| policy.expire = true))
        .handle_checked(DESTINATION, async |_| Ok(vec![]));
    let error = in_time(consumer.run(pending())).await.unwrap_err();
    assert!(error.to_string().contains("expire"), "{error}");
    assert_eq!(broker.told().asked, 0);
}

#[tokio::test]
async fn checked_handler_handles_each_message_once() {
    let fixture = Fixture::new().await;
    let messages = [message(), message()];
    let broker = Broker::with([&messages[..], &messages[..]].concat()).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .concurrency(1)
        .handle_checked(DESTINATION, async |_: Message| Ok(vec![fact()]));
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.handled, summary.duplicates), (2, 2));
    for message in &messages {
        fixture.assert_done_once(message).await;
    }
}
