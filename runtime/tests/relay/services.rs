//! I4: tests of `Services`, which runs a consumer and a relay in one process.

use std::{
    future::{pending, ready},
    sync::Arc,
};

use idem_client::{Effect, relay::create_relay};
use idem_runtime::{Consumer, Error, Handled, Message, Relay, Services, Tx};
use idem_testkit::{DEADLINE, Database, broker, until};
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    broker::Broker,
    fixtures::{quick, until_acknowledged},
};

fn message(id: &str) -> Message {
    Message::new("queue", "{}").with_message_id(id)
}

/// A handler that returns one effect. The payload of the effect is the id of the message.
async fn forward(_: Tx, message: Message) -> Handled {
    Ok(vec![
        Effect::json("things", &message.message_id())?.key("k"),
    ])
}

async fn ended(running: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    timeout(DEADLINE, running)
        .await
        .expect("the services do not end")
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_missing_relay_is_waited_for_while_the_consumer_runs() {
    let db = Database::create();
    let client = db.client().await;
    let (incoming, outgoing) = (broker::Broker::with([message("m-1")]), Broker::default());
    let consumer = Consumer::new(db.pool(4), incoming.clone()).handle("forward", forward);
    let relay = Relay::new(db.pool(3), outgoing.clone()).name("later");
    let (stop, stopped) = oneshot::channel::<()>();
    let services = Services::new().consumer(consumer).relay(relay);
    let running = tokio::spawn(services.run(async {
        let _ = stopped.await;
    }));

    until("the message is handled", async || {
        incoming.told().acknowledged.len() == 1
    })
    .await;
    create_relay(&client, "later", 1, true).await.unwrap();
    outgoing.until_taken(1).await;
    assert_eq!(outgoing.of_key("k"), ["m-1"]);
    stop.send(()).unwrap();
    ended(running).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_stop_after_the_last_commit_of_the_consumers() {
    let db = Database::create();
    let (incoming, outgoing) = (broker::Broker::with([message("last")]), Broker::default());
    let held = Arc::new(Notify::new());
    let (requested, is_requested) = watch::channel(false);
    let published = outgoing.clone();
    // The handler of the first message commits an effect after the shutdown was requested. The
    // handler of the second message waits until that effect is published.
    let first = incoming.clone();
    let holds = Arc::clone(&held);
    let handler = move |_: Tx, message: Message| {
        let (published, first, held) = (published.clone(), first.clone(), Arc::clone(&holds));
        let mut is_requested = is_requested.clone();
        async move {
            if message.message_id() == Some("waits") {
                published.until_taken(1).await;
                return Ok(vec![]);
            }
            first.send(self::message("waits"));
            let delivered = move || ready(first.unsettled() == 2);
            until("the second message is delivered, too", delivered).await;
            held.notify_one();
            is_requested
                .wait_for(|is_requested| *is_requested)
                .await
                .unwrap();
            forward_one(&message)
        }
    };
    let consumer = Consumer::new(db.pool(4), incoming.clone()).handle("forward", handler);
    let services = Services::new()
        .consumer(consumer)
        .relay(quick(db.pool(3), outgoing.clone()));
    let running = tokio::spawn(services.run(async move {
        held.notified().await;
        requested.send(true).unwrap();
    }));
    ended(running).await.unwrap();
    assert_eq!(outgoing.of_key("k"), ["last"]);
    let mut acknowledged = incoming.told().acknowledged;
    acknowledged.sort();
    assert_eq!(
        acknowledged,
        ["last", "waits"],
        "both messages are acknowledged"
    );
}

fn forward_one(message: &Message) -> Handled {
    Ok(vec![
        Effect::json("things", &message.message_id())?.key("k"),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_end_of_one_service_ends_all_with_its_error() {
    let db = Database::create();
    let client = db.client().await;
    let (incoming, outgoing) = (
        broker::Broker::with([message("m-1")]).closed(),
        Broker::default(),
    );
    let consumer = Consumer::new(db.pool(4), incoming.clone()).handle("forward", forward);
    let services = Services::new()
        .consumer(consumer)
        .relay(quick(db.pool(3), outgoing.clone()));
    let error = ended(tokio::spawn(services.run(pending())))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::SourceEnded(ended) if ended.summary.handled == 1),
        "{error:?}"
    );
    let relay = crate::fixtures::Running::start(quick(db.pool(3), outgoing.clone()));
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    assert_eq!(
        outgoing.of_key("k"),
        ["m-1"],
        "one of the relays publishes the effect"
    );
}
