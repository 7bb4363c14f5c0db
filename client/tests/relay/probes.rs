//! I4: effects that wait for a topic are not forgotten, and the status says which topics wait.

use std::time::Duration;

use idem_client::{Effect, send};
use tokio_postgres::Client;

use crate::{
    broker::{Broker, Fate},
    support::{Database, until},
    world::{Running, parked, quick, say_rounds, until_acknowledged},
};

/// Goal: the broker is lost while effects wait for a topic. Invariant: I4.
#[tokio::test]
async fn i4_lanes_that_wait_survive_probes_without_a_result() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let db = Database::create();
    let mut client = db.connect().await;
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
    // The lease is an hour: no other batch brings an effect that this one forgets.
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    broker.until_taken(2 * KEYS.len()).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
    for key in KEYS {
        assert_eq!(
            broker.of_key(key),
            [format!("{key}-0"), format!("{key}-1")],
            "each once"
        );
    }
    assert_eq!(broker.overlaps(), [""; 0]);
    assert_eq!(parked(&client).await, []);
}

async fn say_to(client: &Client, topic: &str, says: &str) {
    let effect = Effect::json(topic, &says).unwrap().key(says);
    send(client, &effect).await.unwrap();
}

/// Goal: a topic that exists at last refuses each effect that waited for it.
#[tokio::test]
async fn topic_whose_effects_are_all_parked_does_not_wait() {
    let db = Database::create();
    let mut client = db.connect().await;
    let tx = client.transaction().await.unwrap();
    for (topic, says) in [("late", "late-1"), ("late", "late-2"), ("absent", "absent")] {
        say_to(tx.client(), topic, says).await;
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
    until("both topics wait", async || waiting() == ["absent", "late"]).await;
    broker.rule(|says| {
        if says == "absent" {
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

/// Goal: another process publishes the batch of a process without a broker. Invariant: I4.
#[tokio::test]
async fn lost_broker_is_unknown_after_another_process_published() {
    let (log, _guard) = crate::log::Log::keep();
    let db = Database::create();
    let mut client = db.connect().await;
    say_rounds(&mut client, &["a"], 1).await;
    let (away, there) = (Broker::default(), Broker::default());
    away.rule(|_| Fate::Unavailable);
    let start = |broker: &Broker| {
        Running::start(quick(db.pool(2), broker.clone()).lease(Duration::from_millis(800)))
    };
    let first = start(&away);
    until("its broker is away", async || {
        first.status.borrow().broker == Some(false)
    })
    .await;
    let second = start(&there);
    there.until_taken(1).await;
    until_acknowledged(&client, "default").await;
    until("the first process looked again", async || {
        first.status.borrow().broker != Some(false)
    })
    .await;
    let status = first.status.borrow().clone();
    assert_eq!((status.broker, status.broker_error), (None, None));
    let ends = log.lines(tracing::Level::INFO, "no effect waits for the broker");
    assert_eq!(ends.len(), 1, "{ends:?}");
    first.stop().await;
    second.stop().await;
}

/// Goal: a broker comes back without the exchange of the publisher, and no effect waits in this
/// process. Invariant: I4.
#[tokio::test]
async fn i4_broker_without_its_exchange_is_named_in_the_status() {
    const LACKS: &str = "NOT_FOUND - no exchange 'events'";
    let (log, _guard) = crate::log::Log::keep();
    let db = Database::create();
    let mut client = db.connect().await;
    say_rounds(&mut client, &["a"], 1).await;
    let (broker, there) = (Broker::default(), Broker::default());
    broker.is_away(true);
    let start = |broker: &Broker| {
        Running::start(quick(db.pool(2), broker.clone()).lease(Duration::from_millis(800)))
    };
    let first = start(&broker);
    until("its broker is away", async || {
        first.status.borrow().broker == Some(false)
    })
    .await;
    let second = start(&there);
    there.until_taken(1).await;
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
    assert_eq!(first.status.borrow().broker, Some(true), "it answers");
    let warnings = log.lines(tracing::Level::WARN, LACKS);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    broker.lacks(None);
    broker.is_away(true);
    until("its broker is away again", async || {
        first.status.borrow().broker == Some(false)
    })
    .await;
    broker.lacks(None);
    until("nothing is lacking", async || {
        first.status.borrow().broker_error.is_none()
    })
    .await;
    assert_eq!(log.lines(tracing::Level::WARN, LACKS).len(), 1);
    first.stop().await;
}

/// Goal: an effect of one key finds the broker away for ever, and the others do not. Invariant: I4.
#[tokio::test]
async fn i4_effect_without_an_answer_is_not_the_only_probe() {
    let db = Database::create();
    let mut client = db.connect().await;
    say_rounds(&mut client, &["mute", "a", "b"], 1).await;
    let broker = Broker::default();
    broker.rule(|says| {
        if says == "mute-0" {
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

/// Goal: many topics miss one exchange. Invariant: I4.
#[tokio::test]
async fn i4_many_topics_with_one_cause_are_one_warning() {
    const TOPICS: usize = 40;
    let (log, _guard) = crate::log::Log::keep();
    let db = Database::create();
    let mut client = db.connect().await;
    let tx = client.transaction().await.unwrap();
    for n in 0..TOPICS {
        say_to(tx.client(), &format!("route-{n}"), &format!("says-{n}")).await;
    }
    tx.commit().await.unwrap();
    let broker = Broker::default();
    broker.rule(|_| Fate::NoPlace);
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let is_tried_again = async || (0..TOPICS).all(|n| broker.attempts(&format!("says-{n}")) >= 3);
    until("each topic is tried again", is_tried_again).await;
    assert_eq!(relay.status.borrow().unavailable_topics, TOPICS);
    let warnings = log.lines(tracing::Level::WARN, "");
    assert_eq!(warnings.len(), 1, "one cause");
    broker.rule(|_| Fate::Take);
    broker.until_taken(TOPICS).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
}

/// Goal: two topics have one reason, and one of them recovers. The log names the other. Invariant:
/// I4.
#[tokio::test]
async fn i4_topic_that_waits_longer_than_the_first_is_logged() {
    let (log, _guard) = crate::log::Log::keep();
    let db = Database::create();
    let client = db.connect().await;
    for topic in ["first", "second"] {
        say_to(&client, topic, topic).await;
    }
    let broker = Broker::default();
    broker.rule(|_| Fate::NoPlace);
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    let waiting = || relay.status.borrow().unavailable_topics;
    until("both topics wait", async || waiting() == 2).await;
    let warnings = log.lines(tracing::Level::WARN, "");
    assert_eq!(warnings.len(), 1, "one cause: {warnings:#?}");
    let (recovers, stays) = match warnings[0].contains("topic=\"first\"") {
        true => ("first", "second"),
        false => ("second", "first"),
    };
    broker.rule(move |says| {
        if says == recovers {
            Fate::Take
        } else {
            Fate::NoPlace
        }
    });
    broker.until_taken(1).await;
    let attempts = broker.attempts(stays);
    until("the other is tried again and again", async || {
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
