//! I4: effects that wait for a topic are not lost, and the status shows which topics are
//! unavailable.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_client::{Effect, send};
use idem_testkit::{Database, until};
use tokio_postgres::Client;

use crate::{
    broker::{Broker, Fate},
    fixtures::{Running, parked, quick, say_rounds, until_acknowledged},
};

/// Goal: no effect is lost when the broker becomes unavailable while effects wait for a topic.
/// Invariant: I4.
#[tokio::test]
async fn i4_waiting_effects_survive_probes_without_a_result() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &KEYS, 2).await;
    let broker = Broker::default();
    let mut attempt = 0;
    broker.rule(move |_| {
        attempt += 1;
        match attempt {
            1..=4 => Fate::NoPlace,
            5..=7 => Fate::Unavailable,
            8 => Fate::NoPlace,
            9 | 10 => Fate::Unavailable,
            _ => Fate::Take,
        }
    });
    // The lease is an hour, so no other batch could publish the effects if this batch lost them.
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    broker.until_taken(2 * KEYS.len()).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    for key in KEYS {
        assert_eq!(
            broker.of_key(key),
            [format!("{key}-0"), format!("{key}-1")],
            "each effect is published once"
        );
    }
    assert_eq!(broker.overlaps(), [""; 0]);
    assert_eq!(parked(&client).await, []);
}

async fn say_to(client: &Client, topic: &str, payload: &str) {
    let effect = Effect::json(topic, &payload).unwrap().key(payload);
    send(client, &effect).await.unwrap();
}

/// Goal: when a topic becomes available and rejects all effects that have waited for it, the topic
/// no longer counts as unavailable.
#[tokio::test]
async fn topic_without_remaining_effects_is_not_unavailable() {
    let db = Database::create();
    let mut client = db.client().await;
    let tx = client.transaction().await.unwrap();
    for (topic, payload) in [("late", "late-1"), ("late", "late-2"), ("absent", "absent")] {
        say_to(tx.client(), topic, payload).await;
    }
    tx.commit().await.unwrap();
    let broker = Broker::default();
    broker.rule(|_| Fate::NoPlace);
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let waiting = || -> Vec<String> {
        let status = relay.status.borrow();
        status
            .unavailable
            .iter()
            .map(|at| at.topic.clone())
            .collect()
    };
    until("both topics are unavailable", async || {
        waiting() == ["absent", "late"]
    })
    .await;
    broker.rule(|payload| {
        if payload == "absent" {
            Fate::NoPlace
        } else {
            Fate::Refuse
        }
    });
    until("both effects are parked", async || {
        relay.status.borrow().parked == 2
    })
    .await;
    assert_eq!(waiting(), ["absent"]);
    relay.stop().await;
}

/// Goal: a process cannot reach its broker, and another process publishes the batch. The state of
/// the broker is then unknown for the first process. Invariant: I4.
#[tokio::test]
async fn lost_broker_is_unknown_after_another_process_published() {
    let (log, _guard) = idem_testkit::log::Log::keep();
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["a"], 1).await;
    let (unavailable, available) = (Broker::default(), Broker::default());
    unavailable.rule(|_| Fate::Unavailable);
    let start = |broker: &Broker| {
        Running::start(quick(db.pool(2), broker.clone()).lease(Duration::from_millis(800)))
    };
    let first = start(&unavailable);
    until(
        "the broker of the first process is unavailable",
        async || first.status.borrow().broker == Some(false),
    )
    .await;
    let second = start(&available);
    available.until_taken(1).await;
    until_acknowledged(&client, "default").await;
    until(
        "the first process has requested a batch again",
        async || first.status.borrow().broker != Some(false),
    )
    .await;
    let status = first.status.borrow().clone();
    assert_eq!((status.broker, status.broker_error), (None, None));
    let ends = log.lines(tracing::Level::INFO, "no effect waits for the broker");
    assert_eq!(ends.len(), 1, "{ends:?}");
    first.stop().await;
    second.stop().await;
}

/// Goal: the broker becomes available again, but the exchange of the publisher is missing. The
/// status shows this although no effect waits in this process. Invariant: I4.
#[tokio::test]
async fn i4_broker_without_its_exchange_is_named_in_the_status() {
    const LACKS: &str = "NOT_FOUND - no exchange 'events'";
    let (log, _guard) = idem_testkit::log::Log::keep();
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["a"], 1).await;
    let (broker, available) = (Broker::default(), Broker::default());
    broker.is_away(true);
    let start = |broker: &Broker| {
        Running::start(quick(db.pool(2), broker.clone()).lease(Duration::from_millis(800)))
    };
    let first = start(&broker);
    until(
        "the broker of the first process is unavailable",
        async || first.status.borrow().broker == Some(false),
    )
    .await;
    let second = start(&available);
    available.until_taken(1).await;
    until_acknowledged(&client, "default").await;
    second.stop().await;

    broker.lacks(Some(LACKS));
    let error = || {
        first
            .status
            .borrow()
            .broker_error
            .clone()
            .unwrap_or_default()
    };
    until("the status names the exchange", async || error() == LACKS).await;
    assert_eq!(
        first.status.borrow().broker,
        Some(true),
        "the broker is available"
    );
    let warnings = log.lines(tracing::Level::WARN, LACKS);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    broker.lacks(None);
    broker.is_away(true);
    until(
        "the broker of the first process is unavailable again",
        async || first.status.borrow().broker == Some(false),
    )
    .await;
    broker.lacks(None);
    until("the status has no broker error", async || {
        first.status.borrow().broker_error.is_none()
    })
    .await;
    assert_eq!(log.lines(tracing::Level::WARN, LACKS).len(), 1);
    first.stop().await;
}

/// Goal: an effect that finds the broker unavailable on every attempt does not stop effects of
/// other keys, for which the broker is available. Invariant: I4.
#[tokio::test]
async fn i4_effect_without_a_response_is_not_the_only_probe() {
    let db = Database::create();
    let mut client = db.client().await;
    say_rounds(&mut client, &["mute", "a", "b"], 1).await;
    let broker = Broker::default();
    broker.rule(|payload| {
        if payload == "mute-0" {
            Fate::Unavailable
        } else {
            Fate::Take
        }
    });
    let relay = Running::start(quick(db.pool(2), broker.clone()).in_flight(1));
    broker.until_taken(2).await;
    assert_eq!(
        (broker.of_key("a"), broker.of_key("b")),
        (vec!["a-0".to_owned()], vec!["b-0".to_owned()])
    );
    broker.rule(|_| Fate::Take);
    until_acknowledged(&client, "default").await;
    relay.stop().await;
}

/// Goal: when many topics wait for the same missing exchange, the relay logs one warning.
/// Invariant: I4.
#[tokio::test]
async fn i4_many_topics_with_one_cause_log_one_warning() {
    const TOPICS: usize = 40;
    let (log, _guard) = idem_testkit::log::Log::keep();
    let db = Database::create();
    let mut client = db.client().await;
    let tx = client.transaction().await.unwrap();
    for n in 0..TOPICS {
        say_to(tx.client(), &format!("route-{n}"), &format!("payload-{n}")).await;
    }
    tx.commit().await.unwrap();
    let broker = Broker::default();
    broker.rule(|_| Fate::NoPlace);
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let is_tried_again =
        async || (0..TOPICS).all(|n| broker.attempts(&format!("payload-{n}")) >= 3);
    until("each topic is retried", is_tried_again).await;
    assert_eq!(relay.status.borrow().unavailable_topics, TOPICS);
    let warnings = log.lines(tracing::Level::WARN, "");
    assert_eq!(warnings.len(), 1, "one warning for the common cause");
    broker.rule(|_| Fate::Take);
    broker.until_taken(TOPICS).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
}

/// Goal: two topics are unavailable for the same reason, and one of them recovers. The log then
/// names the topic that stays unavailable. Invariant: I4.
#[tokio::test]
async fn i4_topic_that_stays_unavailable_is_logged() {
    let (log, _guard) = idem_testkit::log::Log::keep();
    let db = Database::create();
    let client = db.client().await;
    for topic in ["first", "second"] {
        say_to(&client, topic, topic).await;
    }
    let broker = Broker::default();
    broker.rule(|_| Fate::NoPlace);
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let waiting = || relay.status.borrow().unavailable_topics;
    until("both topics are unavailable", async || waiting() == 2).await;
    let warnings = log.lines(tracing::Level::WARN, "");
    assert_eq!(
        warnings.len(),
        1,
        "one warning for the common cause: {warnings:#?}"
    );
    let (recovers, stays) = match warnings[0].contains("topic=\"first\"") {
        true => ("first", "second"),
        false => ("second", "first"),
    };
    broker.rule(move |payload| {
        if payload == recovers {
            Fate::Take
        } else {
            Fate::NoPlace
        }
    });
    broker.until_taken(1).await;
    let attempts = broker.attempts(stays);
    until("the other topic is retried twice", async || {
        broker.attempts(stays) >= attempts + 2
    })
    .await;
    let warnings = log.lines(tracing::Level::WARN, "");
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    assert!(
        warnings[1].contains(&format!("topic=\"{stays}\"")),
        "{warnings:#?}"
    );
    broker.rule(|_| Fate::Take);
    until_acknowledged(&client, "default").await;
    relay.stop().await;
}

/// I4. Goal: the database shows what a partition waits for, so that its health check names the
/// cause. Effects of other topics are published meanwhile.
#[tokio::test]
async fn i4_relay_reports_the_topic_that_it_waits_for() {
    let db = Database::create();
    let client = db.client().await;
    for topic in ["here", "nowhere"] {
        say_to(&client, topic, topic).await;
    }
    let broker = Broker::default();
    let is_absent = Arc::new(AtomicBool::new(true));
    let absent = Arc::clone(&is_absent);
    broker.rule(move |payload| match payload {
        "nowhere" if absent.load(Ordering::SeqCst) => Fate::NoPlace,
        _ => Fate::Take,
    });
    let relay = quick(db.pool(2), broker.clone()).lease(Duration::from_secs(1));
    let relay = Running::start(relay);
    let health = async |what: &str| {
        let check = "SELECT status || '|' || detail FROM idem_health() \
                     WHERE check_name = 'relay default/0'";
        let check: String = client.query_one(check, &[]).await.unwrap().get(0);
        check.contains(what)
    };
    until("the relay reports the topic", async || {
        health("it waits for topic \"nowhere\": no such queue").await
    })
    .await;
    assert!(health("warning|").await);
    broker.until_taken(1).await;
    is_absent.store(false, Ordering::SeqCst);
    broker.until_taken(2).await;
    until_acknowledged(&client, "default").await;
    assert!(!health("it waits for").await);
    relay.stop().await;
}
