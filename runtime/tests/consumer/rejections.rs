//! I4: messages that a broker would drop become dead letters in the database, and can be requeued.
//!
//! A *last delivery* is a delivery after which the broker may delete the message, because the
//! message is near the delivery limit of the broker.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_client::MessageId;
use idem_runtime::{
    Consumer, Handled, HandlerError, Idem, Message, Policies, Tx, consumer::Selector,
    policy::IdStrategy, transport::Coordinates,
};
use idem_testkit::{broker::Broker, source_ended};
use tokio::sync::oneshot;

use crate::fixtures::{Fixture, in_time, message, note, noting, until};

const SHORT: Duration = Duration::from_millis(10);

/// Returns the dead letters, each as `destination id: reason`.
async fn letters(fixture: &Fixture) -> Vec<String> {
    let client = fixture.pool.get().await.unwrap();
    let sql =
        "SELECT destination || ' ' || id || ': ' || last_error FROM idem.dead_letters ORDER BY 1";
    let rows = client.query_typed(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// I4: if a broker drops rejected messages, they become dead letters with their reasons, headers
/// and payloads. Duplicates of these messages are acknowledged.
#[tokio::test]
async fn i4_rejected_message_becomes_dead_letter_in_the_database() {
    let fixture = Fixture::new().await;
    let poison = message("poison", "k")
        .with_type("Order")
        .with_header("h", "1")
        .with_header("zero", "a\0b");
    let without_id = Message::new("tests", "1")
        .with_type("Order")
        .with_header("x-delivery-count", "1");
    let broker = Broker::with([
        poison.clone(),
        without_id.clone(),
        // The next two are redeliveries, as if the broker had not received the acknowledgements.
        poison,
        without_id.with_header("x-delivery-count", "2"),
        message("unrouted", "").with_type("Other"),
        message("good", "").with_type("Order"),
    ])
    .dropping_rejected()
    .closed();
    let handler = |tx: Tx, message: Message| async move {
        if message.message_id() == Some("poison") {
            return Err(HandlerError::terminal("no such item"));
        }
        note(&tx, &message).await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(Selector::message_type("Order"), "orders", handler)
        .concurrency(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    let told = broker.told();
    assert_eq!(
        told.rejected,
        [],
        "a message was rejected at its broker, which drops it"
    );
    assert_eq!((summary.handled, told.acknowledged.len()), (1, 6));
    let letters = letters(&fixture).await;
    let [no_id, poison, unrouted] = &letters[..] else {
        panic!("not three dead letters: {letters:?}");
    };
    assert!(
        no_id.starts_with("orders ") && no_id.contains("has no id"),
        "{no_id}"
    );
    assert_eq!(poison, "orders poison: the handler failed: no such item");
    assert!(
        unrouted.starts_with("orders.unrouted ")
            && unrouted.ends_with("no route takes this message"),
        "{unrouted}"
    );
    let client = fixture.pool.get().await.unwrap();
    let row = client
        .query_one(
            "SELECT key, type, convert_from(payload, 'UTF8'), headers::text \
             FROM idem.dead_letters WHERE id = 'poison'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("k", "Order", "{}"));
    let headers: serde_json::Value = serde_json::from_str(row.get(3)).unwrap();
    let expected = serde_json::json!({
        "h": "1", "zero": "a\u{fffd}b", "message-id": "poison", "idem-source-topic": "tests"
    });
    assert_eq!(headers, expected);
}

/// I4: the consumer that rejected a message handles it after a requeue, with the topic and the type
/// of the message.
#[tokio::test]
async fn i4_requeued_message_is_handled_by_its_consumer() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([
        message("m", "k").with_type("Order").with_header("h", "1"),
        Message::new("tests", "{}").with_type("Order"),
    ])
    .dropping_rejected();
    let is_repaired = Arc::new(AtomicBool::new(false));
    let repaired = Arc::clone(&is_repaired);
    let handler = move |tx: Tx, message: Message| {
        let is_repaired = repaired.load(Ordering::Relaxed);
        async move {
            assert_eq!(
                (message.topic(), message.message_type()),
                ("tests", Some("Order"))
            );
            if !is_repaired {
                return Err(HandlerError::terminal("no such item"));
            }
            note(&tx, &message).await?;
            Ok(vec![])
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(Selector::topic("tests"), "orders", handler)
        .back_off(SHORT, SHORT);
    let running = tokio::spawn(consumer.run(async {
        let _ = stopped.await;
    }));
    until("both messages are dead letters", async || {
        letters(&fixture).await.len() == 2
    })
    .await;
    is_repaired.store(true, Ordering::Relaxed);
    fixture.psql("SELECT idem_requeue_all('orders')");
    until("both messages are handled", async || {
        fixture.done().await.len() == 2
    })
    .await;
    stop.send(()).unwrap();
    let summary = in_time(running).await.unwrap().unwrap();

    assert_eq!((summary.handled, summary.rejected), (2, 2));
    assert!(fixture.done().await.contains(&"m".to_owned()));
    let client = fixture.pool.get().await.unwrap();
    let sql = "SELECT (SELECT count(*) FROM idem.pending), \
               (SELECT count(*) FROM idem.inbox WHERE destination = 'orders')";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1)),
        (0, 2),
        "a message is pending or has no claim"
    );
}

/// I4: if the database cannot store a dead letter, its message is released.
#[tokio::test]
async fn i4_message_stays_at_its_broker_if_dead_letter_fails() {
    let fixture = Fixture::new().await;
    fixture.psql("ALTER TABLE idem.dead_letter RENAME TO not_there");
    let broker = Broker::with([message("m", "")])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(Selector::topic("elsewhere"), "orders", noting())
        .back_off(SHORT, SHORT);
    let running = tokio::spawn(consumer.run(pending()));
    until("the message was released three times", async || {
        broker.told().released.len() >= 3
    })
    .await;
    fixture.psql("ALTER TABLE idem.not_there RENAME TO dead_letter");
    let summary = source_ended(in_time(running).await.unwrap());

    assert_eq!((summary.rejected, broker.told().rejected.len()), (1, 0));
    let letters = letters(&fixture).await;
    assert!(
        letters.len() == 1 && letters[0].starts_with("orders.unrouted "),
        "{letters:?}"
    );
}

/// A handler that always returns a terminal error.
async fn always_terminal(_: Tx, _: Message) -> Handled {
    Err(HandlerError::terminal("no such item"))
}

/// I4: while another process holds the lease of a rejected message, the message does not become a
/// dead letter. It becomes a dead letter after the release.
#[tokio::test]
async fn i4_leased_message_is_not_rejected_before_its_release() {
    let fixture = Fixture::new().await;
    fixture.psql("SELECT idem_acquire('held', 'orders', '1 hour')");
    let broker = Broker::with([message("held", ""), message("free", "")])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("orders", always_terminal)
        .back_off(SHORT, SHORT);
    let running = tokio::spawn(consumer.run(pending()));
    until("the leased message was released twice", async || {
        broker.told().released.len() >= 2
    })
    .await;
    until("the other message is a dead letter", async || {
        letters(&fixture).await.len() == 1
    })
    .await;
    fixture.psql("SELECT idem_release('held', 'orders', token) FROM idem.leases WHERE id = 'held'");
    source_ended(in_time(running).await.unwrap());

    let reason = "the handler failed: no such item";
    assert_eq!(
        letters(&fixture).await,
        [
            format!("orders free: {reason}"),
            format!("orders held: {reason}")
        ]
    );
}

/// I4: if a message has the id of a handled message and a different fingerprint, it becomes a dead
/// letter.
#[tokio::test]
async fn i4_id_collision_makes_a_dead_letter() {
    let fixture = Fixture::new().await;
    let policies = Policies::default().destination("orders", |policy| policy.fingerprint = true);
    let idem = Idem::builder().policies(policies).build().unwrap();
    let other = Message::new("tests", r#"{"other": 1}"#).with_message_id("m");
    let broker = Broker::with([message("m", ""), other])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .idem(idem)
        .handle("orders", noting())
        .concurrency(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.handled, summary.rejected), (1, 1));
    let client = fixture.pool.get().await.unwrap();
    let sql =
        "SELECT convert_from(payload, 'UTF8'), headers ->> 'message-id' FROM idem.dead_letters";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (r#"{"other": 1}"#, "m"));
}

/// I4: messages without an id that differ in key, type or coordinates become separate dead letters.
/// Two deliveries of one message become one dead letter.
#[tokio::test]
async fn i4_distinct_messages_without_id_are_distinct_dead_letters() {
    let fixture = Fixture::new().await;
    let at = |offset| Coordinates::new("tests", 0, offset);
    let tombstone = || Message::new("tests", "");
    let broker = Broker::with([
        tombstone().with_key("customer-1"),
        tombstone().with_key("customer-2"),
        tombstone().with_type("Deleted"),
        tombstone().with_coordinates(at(1)),
        tombstone().with_coordinates(at(2)),
        // This is the second delivery of the message above.
        tombstone().with_coordinates(at(2)),
    ])
    .dropping_rejected()
    .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).handle("orders", noting());
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.rejected, letters(&fixture).await.len()), (6, 5));
}

/// I4: at a stop, two messages without a route and with the same id become separate dead letters.
/// The messages have no destination, and an id identifies a message only within a destination.
#[tokio::test]
async fn i4_unrouted_messages_of_one_id_are_two_dead_letters() {
    let fixture = Fixture::new().await;
    let unrouted =
        |payload: &str| Message::new("tests", payload.to_owned()).with_message_id("same");
    let broker = Broker::with([unrouted("1"), unrouted("2")])
        .dropping_rejected()
        .near_limit();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).route(
        Selector::topic("elsewhere"),
        "orders",
        noting(),
    );
    // The stop is requested at once and the test has one thread, so nothing is fetched before it.
    let summary = in_time(consumer.run(async {})).await.unwrap();

    assert_eq!((summary.rejected, broker.told().acknowledged.len()), (2, 2));
    let letters = letters(&fixture).await;
    assert_eq!(letters.len(), 2, "{letters:?}");
}

/// I4: at a stop, messages that the broker may not redeliver become dead letters. In key order, the
/// first message is in its handler and the second waits. Otherwise, both are in their handlers.
#[tokio::test]
async fn i4_last_deliveries_become_dead_letters_at_a_stop() {
    for is_ordered in [true, false] {
        let fixture = Fixture::new().await;
        let broker = Broker::with([message("first", "key"), message("second", "key")])
            .dropping_rejected()
            .near_limit();
        let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
            .handle("orders", |_: Tx, _: Message| pending::<Handled>())
            .ordered_by_key(is_ordered)
            .grace(Duration::from_millis(50));
        let are_fetched = until("both messages are fetched", async || {
            broker.unsettled() == 2
        });
        let summary = in_time(consumer.run(are_fetched)).await.unwrap();

        let told = broker.told();
        assert_eq!(
            (summary.rejected, summary.given_back),
            (2, 0),
            "{is_ordered}"
        );
        assert_eq!(
            (told.released, told.acknowledged.len()),
            (vec![], 2),
            "{is_ordered}"
        );
        let reason = "the consumer stopped before it handled this message, \
                      and its broker may not redeliver it";
        assert_eq!(
            letters(&fixture).await,
            ["first", "second"].map(|id| format!("orders {id}: {reason}")),
            "{is_ordered}"
        );
    }
}

/// I4: at a stop, the consumer rejects a message and the broker never confirms the rejection. The
/// message becomes a dead letter in the database.
#[tokio::test]
async fn i4_unconfirmed_rejection_at_a_stop_makes_dead_letter() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).near_limit().mute();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).handle("orders", noting());
    // The stop is requested at once and the test has one thread, so nothing is fetched before it.
    let summary = in_time(consumer.run(async {})).await.unwrap();

    assert_eq!(
        (summary.rejected, broker.told().ignored),
        (1, vec!["m".to_owned()])
    );
    assert_eq!(letters(&fixture).await.len(), 1);
}

/// The broker does not confirm the rejection of a last delivery at a stop, so the source hands the
/// message over again when it is closed. The consumer counts one rejection and one duplicate.
#[tokio::test]
async fn unconfirmed_rejection_at_a_stop_is_counted_once() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("first", "key"), message("second", "key")])
        .near_limit()
        .silent_about("second");
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("orders", |_: Tx, _: Message| pending::<Handled>())
        .ordered_by_key(true)
        .grace(Duration::from_millis(50));
    let are_fetched = until("both messages are fetched", async || {
        broker.unsettled() == 2
    });
    let summary = in_time(consumer.run(are_fetched)).await.unwrap();

    assert_eq!(broker.told().ignored, ["second", "second"]);
    assert_eq!((summary.rejected, summary.duplicates), (2, 1));
    assert_eq!(letters(&fixture).await.len(), 1);
}

/// I4: a message cannot become a dead letter while another process holds its lease. At a stop, the
/// consumer does not release such a message, because the broker may delete it at the release. It
/// drops the receipt, and the source hands the message over again when it is closed.
#[tokio::test]
async fn i4_leased_last_delivery_is_not_returned_at_a_stop() {
    let fixture = Fixture::new().await;
    fixture.psql("SELECT idem_acquire('held', 'orders', '1 hour')");
    let broker = Broker::with([message("held", "")])
        .dropping_rejected()
        .near_limit();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("orders", noting())
        .back_off(SHORT, SHORT);
    let is_fetched = until("the message is fetched", async || broker.unsettled() == 1);
    let summary = in_time(consumer.run(is_fetched)).await.unwrap();

    let told = broker.told();
    assert_eq!((summary.rejected, letters(&fixture).await.len()), (0, 0));
    assert_eq!((told.released, told.acknowledged), (vec![], vec![]));
    assert_eq!(told.dropped, ["held", "held"]);
    assert_eq!(summary.failed_settlements, 2, "{summary:?}");
}

/// I4: at a stop, four messages at their last delivery must be stored, and another process holds
/// the leases of two of them. The other two are stored without a delay, although the consumer may
/// handle only one message at a time. Each failed settlement is counted.
#[tokio::test]
async fn i4_leased_last_deliveries_do_not_delay_the_others() {
    let ids = ["a", "b", "c", "d"];
    let near_limit = || Broker::with(ids.map(|id| message(id, ""))).near_limit();
    let stop = async |broker: Broker| {
        let fixture = Fixture::new().await;
        fixture.psql(
            "SELECT idem_acquire(id, 'orders', '1 hour') FROM (VALUES ('a'), ('b')) AS leased (id)",
        );
        let consumer = Consumer::new(fixture.pool.clone(), broker).handle("orders", noting());
        // The stop is requested at once and the test has one thread, so nothing is fetched before
        // it.
        let summary = in_time(consumer.concurrency(1).run(async {}))
            .await
            .unwrap();
        assert_eq!((letters(&fixture).await.len(), summary.rejected), (2, 2));
        summary.failed_settlements
    };
    let (dropping, dropping_and_silent, silent) = tokio::join!(
        stop(near_limit().dropping_rejected()),
        stop(near_limit().dropping_rejected().mute()),
        stop(near_limit().mute()),
    );
    assert_eq!((dropping, dropping_and_silent, silent), (2, 4, 4));
}

/// I4: another process holds the lease of a message at its last delivery. At a stop, the consumer
/// tries to store the message until the lease is released.
#[tokio::test]
async fn i4_last_delivery_is_stored_after_its_lease_ends() {
    let fixture = Fixture::new().await;
    fixture.psql("SELECT idem_acquire('late', 'orders', '1 hour')");
    let broker = Broker::with([message("late", "")])
        .dropping_rejected()
        .near_limit();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("orders", noting())
        .back_off(SHORT, SHORT);
    let is_fetched = until("the message is fetched", async || broker.unsettled() == 1);
    let release = async {
        // An attempt to store the message fails at once and does not wait for the lease. Without
        // further retries, the consumer would make 15 attempts: five for each of three hand-overs.
        let error = "message \"late\" of destination \"orders\" is in progress";
        until("the consumer has retried", async || {
            fixture.log().matches(error).count() > 15
        })
        .await;
        fixture.psql(
            "SELECT idem_release('late', 'orders', token) FROM idem.leases WHERE id = 'late'",
        );
    };
    let (summary, ()) = in_time(async { tokio::join!(consumer.run(is_fetched), release) }).await;
    assert_eq!(summary.unwrap().rejected, 1);
    assert_eq!(letters(&fixture).await.len(), 1);
    assert_eq!(broker.told().acknowledged, ["late"]);
}

/// I4: at a stop, the consumer tries to store a last delivery until the server accepts connections
/// again, as after a restart. The pool bypasses PgBouncer, which would reject connections for
/// longer than a stop takes.
#[tokio::test]
async fn i4_last_delivery_is_stored_when_the_database_returns() {
    let fixture = Fixture::new().await;
    let away = fixture.take_away();
    let broker = Broker::with([message("m", "")])
        .dropping_rejected()
        .near_limit();
    let consumer =
        Consumer::new(fixture.pool_of("postgres"), broker.clone()).handle("orders", noting());
    let restore = async {
        until("the consumer has retried", async || away.refusals() > 2).await;
        away.give_back();
    };
    // The stop is requested at once and the test has one thread, so nothing is fetched before it.
    let (summary, ()) = in_time(async { tokio::join!(consumer.run(async {}), restore) }).await;
    assert_eq!(
        (summary.unwrap().rejected, letters(&fixture).await.len()),
        (1, 1)
    );
    assert_eq!(broker.told().acknowledged, ["m"]);
}

/// I4: while a last delivery cannot be stored, the consumer holds it and does not return it to the
/// broker.
#[tokio::test]
async fn i4_last_delivery_is_held_while_it_cannot_be_stored() {
    let fixture = Fixture::new().await;
    fixture.psql("ALTER TABLE idem.dead_letter RENAME TO not_there");
    let broker = Broker::with([message("m", "")])
        .dropping_rejected()
        .near_limit()
        .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(Selector::topic("elsewhere"), "orders", noting())
        .back_off(SHORT, SHORT);
    let status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    until("the consumer is paused", async || {
        !status.borrow().is_ready() && broker.unsettled() == 1
    })
    .await;
    fixture.psql("ALTER TABLE idem.not_there RENAME TO dead_letter");
    let summary = source_ended(in_time(running).await.unwrap());

    assert_eq!((summary.rejected, letters(&fixture).await.len()), (1, 1));
    assert_eq!(broker.told().released, []);
}

/// I4: at a stop, a message at its last delivery has the id of a handled message. If the
/// fingerprints differ, it becomes a dead letter. If they are equal, it is a duplicate and does
/// not.
#[tokio::test]
async fn i4_last_delivery_with_id_collision_becomes_dead_letter() {
    let fixture = Fixture::new().await;
    let policies = Policies::default().destination("orders", |policy| policy.fingerprint = true);
    let idem = Idem::builder().policies(policies).build().unwrap();
    let consumer = |broker: &Broker| {
        Consumer::new(fixture.pool.clone(), broker.clone())
            .idem(idem.clone())
            .handle("orders", noting())
    };
    let first = Broker::with([message("m", "")]).closed();
    source_ended(in_time(consumer(&first).run(pending())).await);
    let other = Message::new("tests", r#"{"other": 1}"#).with_message_id("m");
    for (last, payloads) in [(message("m", ""), vec![]), (other, vec![r#"{"other": 1}"#])] {
        let broker = Broker::with([last]).dropping_rejected().near_limit();
        // The stop is requested at once and the test has one thread, so nothing is fetched before
        // it.
        in_time(consumer(&broker).run(async {})).await.unwrap();

        assert_eq!(broker.told().acknowledged.len(), 1, "{payloads:?}");
        let client = fixture.pool.get().await.unwrap();
        let sql = "SELECT convert_from(payload, 'UTF8') FROM idem.dead_letters";
        let rows = client.query(sql, &[]).await.unwrap();
        let kept: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(kept, payloads);
    }
}

/// I4: when a selector panics, its message has no destination. Two messages with the same id then
/// become separate dead letters.
#[tokio::test]
async fn i4_panicking_selector_keeps_messages_of_one_id_apart() {
    let fixture = Fixture::new().await;
    let message = |payload: &str| Message::new("tests", payload.to_owned()).with_message_id("same");
    let broker = Broker::with([message("1"), message("2")])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .route(
            Selector::matching(|_| panic!("a bug in a selector")),
            "orders",
            noting(),
        )
        .max_deliveries(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!(summary.rejected, 2);
    let letters = letters(&fixture).await;
    assert_eq!(letters.len(), 2, "{letters:?}");
}

/// I4: messages with an id that the database cannot store, or with an id function that panics,
/// become dead letters.
#[tokio::test]
async fn i4_invalid_id_does_not_stop_other_messages() {
    let fixture = Fixture::new().await;
    let function = |message: &Message| match message.header("panics") {
        Some(_) => panic!("a bug in an id function"),
        None => message.header("id").and_then(|id| MessageId::text(id).ok()),
    };
    let policies = Policies::default()
        .destination("orders", |policy| {
            policy.id = IdStrategy::Header("id".into())
        })
        .destination("functions", move |policy| {
            policy.id = IdStrategy::function(function)
        });
    let idem = Idem::builder().policies(policies).build().unwrap();
    let plain = |id: &str| Message::new("tests", "{}").with_header("id", id);
    let broker = Broker::with([
        plain("a\0b"),
        plain(&"x".repeat(2000)),
        plain("fine")
            .with_type("Function")
            .with_header("panics", "yes"),
        message("good", "").with_header("id", "good"),
    ])
    .dropping_rejected()
    .closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .idem(idem)
        .route(Selector::message_type("Function"), "functions", noting())
        .handle("orders", noting())
        .back_off(SHORT, SHORT)
        .max_deliveries(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.handled, summary.rejected), (1, 3));
    assert_eq!(
        (fixture.done().await, letters(&fixture).await.len()),
        (vec!["good".to_owned()], 3)
    );
}

/// I4: a requeued message is handled by the handler of its destination. A message that had no route
/// is routed again after a requeue.
#[tokio::test]
async fn i4_requeued_message_uses_the_handler_of_its_destination() {
    let fixture = Fixture::new().await;
    // This message was received through `idem_receive` and was not rejected, so it has no topic.
    fixture.psql("SELECT idem_receive('received', 'first', '{}')");
    let broker = Broker::with([
        message("rejected", "").with_type("First"),
        message("later", "").with_type("Later"),
    ])
    .dropping_rejected();
    let consume = |knows_later: bool| {
        let first = move |tx: Tx, message: Message| async move {
            if !knows_later && message.message_id() == Some("rejected") {
                return Err(HandlerError::terminal("no such item"));
            }
            note(&tx, &message).await?;
            Ok(vec![])
        };
        let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
            .route(Selector::message_type("First"), "first", first)
            .store_route(Selector::message_type("Stored"), "first");
        if knows_later {
            consumer.route(Selector::message_type("Later"), "later", noting())
        } else {
            consumer
        }
    };
    let both_kept = async {
        until("both messages are dead letters", async || {
            letters(&fixture).await.len() == 2
        })
        .await
    };
    in_time(consume(false).run(both_kept)).await.unwrap();
    fixture.psql("SELECT idem_requeue_all('first'), idem_requeue_all('first.unrouted')");
    let all_done = async {
        until("all messages are handled", async || {
            fixture.done().await.len() == 3
        })
        .await
    };
    in_time(consume(true).run(all_done)).await.unwrap();

    let client = fixture.pool.get().await.unwrap();
    let sql = "SELECT destination || ' ' || id FROM idem.inbox \
               WHERE destination <> 'first.unrouted' ORDER BY 1";
    let rows = client.query_typed(sql, &[]).await.unwrap();
    let claims: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        claims,
        ["first received", "first rejected", "later later"],
        "a message was claimed with another id or destination"
    );
    let left = client
        .query_one("SELECT count(*) FROM idem.pending", &[])
        .await
        .unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}

/// I2, I4: if a handler executes ROLLBACK or COMMIT, its message becomes a dead letter at once,
/// under its own id and without a write of the handler.
#[tokio::test]
async fn i4_message_with_ended_transaction_becomes_dead_letter() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([
        message("rolled-back", "").with_type("ROLLBACK"),
        message("committed", "").with_type("COMMIT"),
        message("good", "").with_type("SELECT 1"),
    ])
    .dropping_rejected()
    .closed();
    let handler = |tx: Tx, message: Message| async move {
        note(&tx, &message).await?;
        tx.batch_execute(message.message_type().unwrap()).await?;
        Ok(vec![])
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("orders", handler)
        .concurrency(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!(
        (summary.handled, summary.rejected, summary.retried),
        (1, 2, 0)
    );
    let letters = letters(&fixture).await;
    assert_eq!(letters.len(), 2, "{letters:?}");
    for (begin, reason) in [
        ("orders rolled-back", "was ended before its commit"),
        ("orders committed", "2D000: COMMIT"),
    ] {
        assert!(
            letters
                .iter()
                .any(|letter| letter.starts_with(begin) && letter.contains(reason)),
            "{letters:?}"
        );
    }
    assert_eq!(fixture.done().await, ["good"]);
}

/// A message whose handler ends its transaction has one dead letter, also if its broker delivers
/// the message again.
#[tokio::test]
async fn redelivered_message_with_ended_transaction_has_one_letter() {
    let fixture = Fixture::new().await;
    let handler = |tx: Tx, message: Message| async move {
        note(&tx, &message).await?;
        tx.batch_execute(message.message_id().unwrap()).await?;
        Ok(vec![])
    };
    for _ in 0..2 {
        let broker = Broker::with([message("ROLLBACK", ""), message("COMMIT", "")])
            .dropping_rejected()
            .closed();
        let consumer = Consumer::new(fixture.pool.clone(), broker).handle("orders", handler);
        source_ended(in_time(consumer.run(pending())).await);
        assert_eq!(letters(&fixture).await.len(), 2);
    }
}

/// I4: a requeued dead letter whose handler executes COMMIT becomes a dead letter again.
#[tokio::test]
async fn i4_requeued_message_with_ended_transaction_is_kept() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).dropping_rejected();
    let is_repaired = Arc::new(AtomicBool::new(false));
    let repaired = Arc::clone(&is_repaired);
    let handler = move |tx: Tx, message: Message| {
        let is_repaired = repaired.load(Ordering::SeqCst);
        async move {
            note(&tx, &message).await?;
            if !is_repaired {
                tx.batch_execute("COMMIT").await?;
            }
            Ok(vec![])
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).handle("orders", handler);
    let requeued = async {
        for round in 1..=3 {
            until("the message is a dead letter", async || {
                letters(&fixture).await.len() == 1
            })
            .await;
            assert_eq!(fixture.done().await, [""; 0]);
            is_repaired.store(round == 3, Ordering::SeqCst);
            fixture.psql("SELECT idem_requeue_all('orders')");
        }
        until("the message is handled", async || {
            fixture.done().await == ["m"]
        })
        .await;
    };
    let summary = in_time(consumer.run(requeued)).await.unwrap();
    assert_eq!((summary.handled, summary.rejected), (1, 3));
    assert_eq!(letters(&fixture).await, [""; 0]);
}

/// I4: a message that matched no route when it was rejected is kept, if the handler of its new
/// route executes COMMIT.
#[tokio::test]
async fn i4_rerouted_message_with_ended_transaction_is_kept() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "").with_type("Later")]).dropping_rejected();
    let consume = |end: Option<&'static str>| {
        let handler = move |tx: Tx, message: Message| async move {
            note(&tx, &message).await?;
            tx.batch_execute(end.unwrap_or("SELECT 1")).await?;
            Ok(vec![])
        };
        Consumer::new(fixture.pool.clone(), broker.clone())
            .route(Selector::message_type("First"), "first", noting())
            .route(Selector::message_type("Later"), "later", handler)
    };
    let unrouted = Consumer::new(fixture.pool.clone(), broker.clone()).route(
        Selector::message_type("First"),
        "first",
        noting(),
    );
    let kept = async || {
        until("the message is a dead letter", async || {
            let letters = letters(&fixture).await;
            letters.len() == 1 && letters[0].starts_with("first.unrouted ")
        })
        .await
    };
    in_time(unrouted.run(kept())).await.unwrap();
    fixture.psql("SELECT idem_requeue_all('first.unrouted')");
    let summary = in_time(consume(Some("COMMIT")).run(kept())).await.unwrap();
    assert_eq!((summary.handled, summary.rejected), (0, 1));
    fixture.psql("SELECT idem_requeue_all('first.unrouted')");
    assert_eq!(fixture.done().await, [""; 0]);
    let done = until("the message is handled", async || {
        fixture.done().await == ["m"]
    });
    let summary = in_time(consume(None).run(done)).await.unwrap();
    assert_eq!((summary.handled, summary.duplicates), (1, 0));
    let client = fixture.pool.get().await.unwrap();
    let left = client
        .query_one("SELECT count(*) FROM idem.pending", &[])
        .await
        .unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}
