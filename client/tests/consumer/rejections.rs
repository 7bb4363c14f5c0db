//! I4: what a broker would drop is kept in the database, and comes back.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_client::{
    Consumer, Coordinates, Handled, HandlerError, IdStrategy, Idem, Message, MessageId, Policies,
    Selector, Tx,
};
use tokio::sync::oneshot;

use crate::{
    broker::Broker,
    ground::{Ground, in_time, message, note, noting, until},
    support::source_ended,
};

const SHORT: Duration = Duration::from_millis(10);

/// The dead letters, each as `destination id: reason`.
async fn letters(ground: &Ground) -> Vec<String> {
    let client = ground.pool.get().await.unwrap();
    let sql =
        "SELECT destination || ' ' || id || ': ' || last_error FROM idem.dead_letters ORDER BY 1";
    let rows = client.query_typed(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn i4_rejected_message_is_kept_when_its_broker_would_drop_it() {
    let ground = Ground::new().await;
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
        // The broker has not heard the acknowledgement.
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
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .route(Selector::message_type("Order"), "orders", handler)
        .concurrency(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    let told = broker.told();
    assert_eq!(told.rejected, [], "the broker would have dropped it");
    assert_eq!((summary.handled, told.acknowledged.len()), (1, 6));
    let letters = letters(&ground).await;
    let [no_id, poison, unrouted] = &letters[..] else {
        panic!("three letters: {letters:?}");
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
    let client = ground.pool.get().await.unwrap();
    let row = client
        .query_one(
            "SELECT key, type, convert_from(payload, 'UTF8'), headers::text FROM idem.dead_letters WHERE id = 'poison'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("k", "Order", "{}"));
    let headers: serde_json::Value = serde_json::from_str(row.get(3)).unwrap();
    let expected = serde_json::json!({"h": "1", "zero": "a\u{fffd}b", "message-id": "poison", "idem-source-topic": "tests"});
    assert_eq!(headers, expected);
}

#[tokio::test]
async fn i4_requeued_message_is_handled_by_the_consumer_that_rejected_it() {
    let ground = Ground::new().await;
    let broker = Broker::with([
        message("m", "k").with_type("Order").with_header("h", "1"),
        Message::new("tests", "{}").with_type("Order"),
    ])
    .dropping_rejected();
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&is_mended);
    let handler = move |tx: Tx, message: Message| {
        let is_mended = mended.load(Ordering::Relaxed);
        async move {
            assert_eq!(
                (message.topic(), message.message_type()),
                ("tests", Some("Order"))
            );
            if !is_mended {
                return Err(HandlerError::terminal("no such item"));
            }
            note(&tx, &message).await?;
            Ok(vec![])
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .route(Selector::topic("tests"), "orders", handler)
        .back_off(SHORT, SHORT);
    let running = tokio::spawn(consumer.run(async {
        let _ = stopped.await;
    }));
    until("both are kept", async || letters(&ground).await.len() == 2).await;
    is_mended.store(true, Ordering::Relaxed);
    ground.psql("SELECT idem_requeue_all('orders')");
    until("both are handled", async || ground.done().await.len() == 2).await;
    stop.send(()).unwrap();
    let summary = in_time(running).await.unwrap().unwrap();

    assert_eq!((summary.handled, summary.rejected), (2, 2));
    assert!(ground.done().await.contains(&"m".to_owned()));
    let client = ground.pool.get().await.unwrap();
    let sql = "SELECT (SELECT count(*) FROM idem.pending), (SELECT count(*) FROM idem.inbox WHERE destination = 'orders')";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1)),
        (0, 2),
        "nothing waits, and both are claimed"
    );
}

#[tokio::test]
async fn i4_message_that_the_database_cannot_keep_stays_at_its_broker() {
    let ground = Ground::new().await;
    ground.psql("ALTER TABLE idem.dead_letter RENAME TO not_there");
    let broker = Broker::with([message("m", "")])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .route(Selector::topic("elsewhere"), "orders", noting())
        .back_off(SHORT, SHORT);
    let running = tokio::spawn(consumer.run(pending()));
    until("it was given back three times", async || {
        broker.told().released.len() >= 3
    })
    .await;
    ground.psql("ALTER TABLE idem.not_there RENAME TO dead_letter");
    let summary = source_ended(in_time(running).await.unwrap());

    assert_eq!((summary.rejected, broker.told().rejected.len()), (1, 0));
    let letters = letters(&ground).await;
    assert!(
        letters.len() == 1 && letters[0].starts_with("orders.unrouted "),
        "{letters:?}"
    );
}

/// Fails for good, always.
async fn refuses(_: Tx, _: Message) -> Handled {
    Err(HandlerError::terminal("no such item"))
}

#[tokio::test]
async fn i4_message_that_another_process_holds_is_not_rejected_yet() {
    let ground = Ground::new().await;
    ground.psql("SELECT idem_acquire('held', 'orders', '1 hour')");
    let broker = Broker::with([message("held", ""), message("free", "")])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("orders", refuses)
        .back_off(SHORT, SHORT);
    let running = tokio::spawn(consumer.run(pending()));
    until("the held one was given back twice", async || {
        broker.told().released.len() >= 2
    })
    .await;
    until("the other one is kept", async || {
        letters(&ground).await.len() == 1
    })
    .await;
    ground.psql("SELECT idem_release('held', 'orders', token) FROM idem.leases WHERE id = 'held'");
    source_ended(in_time(running).await.unwrap());

    let reason = "the handler failed: no such item";
    assert_eq!(
        letters(&ground).await,
        [
            format!("orders free: {reason}"),
            format!("orders held: {reason}")
        ]
    );
}

#[tokio::test]
async fn i4_message_with_the_id_of_another_one_is_kept() {
    let ground = Ground::new().await;
    let policies = Policies::default().destination("orders", |rule| rule.fingerprint(true));
    let idem = Idem::builder().policies(policies).build().unwrap();
    let other = Message::new("tests", r#"{"other": 1}"#).with_message_id("m");
    let broker = Broker::with([message("m", ""), other])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .idem(idem)
        .handle("orders", noting())
        .concurrency(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.handled, summary.rejected), (1, 1));
    let client = ground.pool.get().await.unwrap();
    let sql =
        "SELECT convert_from(payload, 'UTF8'), headers ->> 'message-id' FROM idem.dead_letters";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (r#"{"other": 1}"#, "m"));
}

#[tokio::test]
async fn i4_messages_without_an_id_that_differ_are_kept_apart() {
    let ground = Ground::new().await;
    let at = |offset| Coordinates {
        topic: "tests".into(),
        partition: 0,
        offset,
    };
    let tombstone = || Message::new("tests", "");
    let broker = Broker::with([
        tombstone().with_key("customer-1"),
        tombstone().with_key("customer-2"),
        tombstone().with_type("Deleted"),
        tombstone().with_coordinates(at(1)),
        tombstone().with_coordinates(at(2)),
        // Delivered twice.
        tombstone().with_coordinates(at(2)),
    ])
    .dropping_rejected()
    .closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone()).handle("orders", noting());
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.rejected, letters(&ground).await.len()), (6, 5));
}

/// An id is unique within a destination, and these messages have none.
#[tokio::test]
async fn i4_unrouted_messages_of_one_id_are_kept_apart_at_a_stop() {
    let ground = Ground::new().await;
    let unrouted =
        |payload: &str| Message::new("tests", payload.to_owned()).with_message_id("same");
    let broker = Broker::with([unrouted("1"), unrouted("2")])
        .dropping_rejected()
        .near_limit();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone()).route(
        Selector::topic("elsewhere"),
        "orders",
        noting(),
    );
    // On one thread: nothing is fetched before the stop.
    let summary = in_time(consumer.run(async {})).await.unwrap();

    assert_eq!((summary.rejected, broker.told().acknowledged.len()), (2, 2));
    let letters = letters(&ground).await;
    assert_eq!(letters.len(), 2, "{letters:?}");
}

/// In the order of their key the first message is in its handler, and the second waits for it.
/// Otherwise both are in their handlers.
#[tokio::test]
async fn i4_last_deliveries_of_a_plain_source_are_kept_at_a_stop() {
    for is_ordered in [true, false] {
        let ground = Ground::new().await;
        let broker = Broker::with([message("first", "key"), message("second", "key")])
            .dropping_rejected()
            .near_limit();
        let consumer = Consumer::new(ground.pool.clone(), broker.clone())
            .handle("orders", |_: Tx, _: Message| pending::<Handled>())
            .ordered_by_key(is_ordered)
            .grace(Duration::from_millis(50));
        let are_fetched = until("both are fetched", async || broker.unsettled() == 2);
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
        let reason = "the consumer stopped before it handled this message, and its broker may not deliver it again";
        assert_eq!(
            letters(&ground).await,
            ["first", "second"].map(|id| format!("orders {id}: {reason}")),
            "{is_ordered}"
        );
    }
}

/// The broker never confirms that it keeps the message.
#[tokio::test]
async fn i4_last_delivery_of_a_silent_broker_is_kept_at_a_stop() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")]).near_limit().mute();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone()).handle("orders", noting());
    // On one thread: nothing is fetched before the stop.
    let summary = in_time(consumer.run(async {})).await.unwrap();

    assert_eq!(
        (summary.rejected, broker.told().ignored),
        (1, vec!["m".to_owned()])
    );
    assert_eq!(letters(&ground).await.len(), 1);
}

/// The source hands it over a second time at its close.
#[tokio::test]
async fn last_delivery_of_a_silent_broker_is_counted_once() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("first", "key"), message("second", "key")])
        .near_limit()
        .silent_about("second");
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("orders", |_: Tx, _: Message| pending::<Handled>())
        .ordered_by_key(true)
        .grace(Duration::from_millis(50));
    let are_fetched = until("both are fetched", async || broker.unsettled() == 2);
    let summary = in_time(consumer.run(are_fetched)).await.unwrap();

    assert_eq!(broker.told().ignored, ["second", "second"]);
    assert_eq!((summary.rejected, summary.duplicates), (2, 1));
    assert_eq!(letters(&ground).await.len(), 1);
}

/// Another process holds the lease of the message, so the database does not keep it. The source
/// hands it over once more at its close.
#[tokio::test]
async fn i4_last_delivery_that_is_not_kept_is_not_returned_at_a_stop() {
    let ground = Ground::new().await;
    ground.psql("SELECT idem_acquire('held', 'orders', '1 hour')");
    let broker = Broker::with([message("held", "")])
        .dropping_rejected()
        .near_limit();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("orders", noting())
        .back_off(SHORT, SHORT);
    let is_fetched = until("it is fetched", async || broker.unsettled() == 1);
    let summary = in_time(consumer.run(is_fetched)).await.unwrap();

    let told = broker.told();
    assert_eq!((summary.rejected, letters(&ground).await.len()), (0, 0));
    assert_eq!((told.released, told.acknowledged), (vec![], vec![]));
    assert_eq!(told.dropped, ["held", "held"]);
    assert_eq!(summary.failed_settlements, 2, "{summary:?}");
}

/// More of them than the consumer may hold at a time, and two that are leased: these hold up no
/// other, and each is counted.
#[tokio::test]
async fn i4_last_deliveries_in_progress_hold_up_no_others() {
    let ids = ["a", "b", "c", "d"];
    let near_limit = || Broker::with(ids.map(|id| message(id, ""))).near_limit();
    let stop = async |broker: Broker| {
        let ground = Ground::new().await;
        ground.psql(
            "SELECT idem_acquire(id, 'orders', '1 hour') FROM (VALUES ('a'), ('b')) AS leased (id)",
        );
        let consumer = Consumer::new(ground.pool.clone(), broker).handle("orders", noting());
        // On one thread: nothing is fetched before the stop.
        let summary = in_time(consumer.concurrency(1).run(async {}))
            .await
            .unwrap();
        assert_eq!((letters(&ground).await.len(), summary.rejected), (2, 2));
        summary.failed_settlements
    };
    let (dropping, dropping_and_silent, silent) = tokio::join!(
        stop(near_limit().dropping_rejected()),
        stop(near_limit().dropping_rejected().mute()),
        stop(near_limit().mute()),
    );
    assert_eq!((dropping, dropping_and_silent, silent), (2, 4, 4));
}

/// A transaction that was cut may hold the claim a while longer.
#[tokio::test]
async fn i4_last_delivery_is_kept_when_its_claim_has_ended() {
    let ground = Ground::new().await;
    ground.psql("SELECT idem_acquire('late', 'orders', '1 hour')");
    let broker = Broker::with([message("late", "")])
        .dropping_rejected()
        .near_limit();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .handle("orders", noting())
        .back_off(SHORT, SHORT);
    let is_fetched = until("it is fetched", async || broker.unsettled() == 1);
    let release = async {
        // Without a wait for the claim: five times at each of three hand-overs.
        let refusal = "message \"late\" of destination \"orders\" is in progress";
        until("it is asked for again", async || {
            ground.log().matches(refusal).count() > 15
        })
        .await;
        ground.psql(
            "SELECT idem_release('late', 'orders', token) FROM idem.leases WHERE id = 'late'",
        );
    };
    let (summary, ()) = in_time(async { tokio::join!(consumer.run(is_fetched), release) }).await;
    assert_eq!(summary.unwrap().rejected, 1);
    assert_eq!(letters(&ground).await.len(), 1);
    assert_eq!(broker.told().acknowledged, ["late"]);
}

/// The server refuses connections at first, as it does after a restart. A pooler would refuse them
/// longer than a stop takes.
#[tokio::test]
async fn i4_last_delivery_is_kept_when_its_database_is_back() {
    let ground = Ground::new().await;
    let away = ground.take_away();
    let broker = Broker::with([message("m", "")])
        .dropping_rejected()
        .near_limit();
    let consumer =
        Consumer::new(ground.pool_of("postgres"), broker.clone()).handle("orders", noting());
    let give_back = async {
        until("it is asked for again", async || away.refusals() > 2).await;
        away.give_back();
    };
    // On one thread: nothing is fetched before the stop.
    let (summary, ()) = in_time(async { tokio::join!(consumer.run(async {}), give_back) }).await;
    assert_eq!(
        (summary.unwrap().rejected, letters(&ground).await.len()),
        (1, 1)
    );
    assert_eq!(broker.told().acknowledged, ["m"]);
}

/// It waits in its consumer instead.
#[tokio::test]
async fn i4_last_delivery_that_cannot_be_kept_yet_is_not_returned() {
    let ground = Ground::new().await;
    ground.psql("ALTER TABLE idem.dead_letter RENAME TO not_there");
    let broker = Broker::with([message("m", "")])
        .dropping_rejected()
        .near_limit()
        .closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .route(Selector::topic("elsewhere"), "orders", noting())
        .back_off(SHORT, SHORT);
    let status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    until("the consumer is paused", async || {
        !status.borrow().is_ready() && broker.unsettled() == 1
    })
    .await;
    ground.psql("ALTER TABLE idem.not_there RENAME TO dead_letter");
    let summary = source_ended(in_time(running).await.unwrap());

    assert_eq!((summary.rejected, letters(&ground).await.len()), (1, 1));
    assert_eq!(broker.told().released, []);
}

/// No attempt has compared the two messages. A duplicate is no message to keep.
#[tokio::test]
async fn i4_last_delivery_with_the_id_of_another_one_is_kept() {
    let ground = Ground::new().await;
    let policies = Policies::default().destination("orders", |rule| rule.fingerprint(true));
    let idem = Idem::builder().policies(policies).build().unwrap();
    let consumer = |broker: &Broker| {
        Consumer::new(ground.pool.clone(), broker.clone())
            .idem(idem.clone())
            .handle("orders", noting())
    };
    let first = Broker::with([message("m", "")]).closed();
    source_ended(in_time(consumer(&first).run(pending())).await);
    let other = Message::new("tests", r#"{"other": 1}"#).with_message_id("m");
    for (last, payloads) in [(message("m", ""), vec![]), (other, vec![r#"{"other": 1}"#])] {
        let broker = Broker::with([last]).dropping_rejected().near_limit();
        // On one thread: nothing is fetched before the stop.
        in_time(consumer(&broker).run(async {})).await.unwrap();

        assert_eq!(broker.told().acknowledged.len(), 1, "{payloads:?}");
        let client = ground.pool.get().await.unwrap();
        let sql = "SELECT convert_from(payload, 'UTF8') FROM idem.dead_letters";
        let rows = client.query(sql, &[]).await.unwrap();
        let kept: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(kept, payloads);
    }
}

/// A selector that panics finds no destination.
#[tokio::test]
async fn i4_messages_of_one_id_whose_selector_panics_are_kept_apart() {
    let ground = Ground::new().await;
    let message = |payload: &str| Message::new("tests", payload.to_owned()).with_message_id("same");
    let broker = Broker::with([message("1"), message("2")])
        .dropping_rejected()
        .closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .route(
            Selector::matching(|_| panic!("a bug in a selector")),
            "orders",
            noting(),
        )
        .max_deliveries(1);
    let summary = source_ended(in_time(consumer.run(pending())).await);

    assert_eq!(summary.rejected, 2);
    let letters = letters(&ground).await;
    assert_eq!(letters.len(), 2, "{letters:?}");
}

#[tokio::test]
async fn i4_id_that_the_database_cannot_hold_stops_no_other_message() {
    let ground = Ground::new().await;
    let function = |message: &Message| match message.header("panics") {
        Some(_) => panic!("a bug in an id function"),
        None => message.header("id").and_then(|id| MessageId::text(id).ok()),
    };
    let policies = Policies::default()
        .destination("orders", |rule| rule.id(IdStrategy::Header("id".into())))
        .destination("functions", move |rule| {
            rule.id(IdStrategy::function(function))
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
    let consumer = Consumer::new(ground.pool.clone(), broker.clone())
        .idem(idem)
        .route(Selector::message_type("Function"), "functions", noting())
        .handle("orders", noting())
        .back_off(SHORT, SHORT)
        .max_deliveries(2);
    let summary = source_ended(in_time(consumer.run(pending())).await);
    assert_eq!((summary.handled, summary.rejected), (1, 3));
    assert_eq!(
        (ground.done().await, letters(&ground).await.len()),
        (vec!["good".to_owned()], 3)
    );
}

#[tokio::test]
async fn i4_requeued_message_meets_the_handler_of_its_destination_alone() {
    let ground = Ground::new().await;
    // Received, not rejected: its topic is not known.
    ground.psql("SELECT idem_receive('received', 'first', '{}')");
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
        let consumer = Consumer::new(ground.pool.clone(), broker.clone())
            .route(Selector::message_type("First"), "first", first)
            .store_route(Selector::message_type("Stored"), "first");
        if knows_later {
            consumer.route(Selector::message_type("Later"), "later", noting())
        } else {
            consumer
        }
    };
    let both_kept =
        async { until("both are kept", async || letters(&ground).await.len() == 2).await };
    in_time(consume(false).run(both_kept)).await.unwrap();
    ground.psql("SELECT idem_requeue_all('first'), idem_requeue_all('first.unrouted')");
    let all_done =
        async { until("all are handled", async || ground.done().await.len() == 3).await };
    in_time(consume(true).run(all_done)).await.unwrap();

    let client = ground.pool.get().await.unwrap();
    let sql = "SELECT destination || ' ' || id FROM idem.inbox WHERE destination <> 'first.unrouted' ORDER BY 1";
    let rows = client.query_typed(sql, &[]).await.unwrap();
    let claims: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        claims,
        ["first received", "first rejected", "later later"],
        "each under its own id"
    );
    let left = client
        .query_one("SELECT count(*) FROM idem.pending", &[])
        .await
        .unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}
