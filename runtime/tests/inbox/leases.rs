//! A consumer holds the lease of a message only while it processes the message.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_runtime::{
    Consumer, HandlerError, Idem, Message, Policies, Tx, consumer::Batches, lease::LeaseContext,
    policy::Style,
};
use idem_testkit::until;

use crate::fixtures::{Doomed, Fixture, Running, note, noting};

#[tokio::test]
async fn messages_of_a_killed_consumer_are_handled_after_the_lease() {
    const MESSAGES: usize = 12;
    let fixture = Fixture::new().await;
    for n in 0..MESSAGES {
        fixture
            .receive(&format!("m-{n}"), &format!("key-{}", n % 6))
            .await;
    }
    let begun = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&begun);
    let never = move |tx: Tx, message: Message| {
        let seen = Arc::clone(&seen);
        async move {
            note(&tx, &message).await?;
            seen.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
    };
    let lease = Duration::from_secs(2);
    let victim = Doomed::start(&fixture, |pool| {
        let source = fixture.source(&pool).lease(lease);
        Consumer::new(pool, source)
            .handle(fixture.to.as_str(), never)
            .concurrency(3)
    });
    until("the handlers run", async || {
        begun.load(Ordering::SeqCst) == 3
    })
    .await;
    victim.kill();

    let successor = Running::start(
        fixture
            .consumer(&fixture.db.pool(6))
            .handle(fixture.to.as_str(), noting()),
    );
    fixture.until_done(MESSAGES).await;
    fixture.until_empty().await;
    let summary = successor.stop().await;
    assert_eq!((summary.handled, summary.duplicates), (MESSAGES as u64, 0));
    let mut done = fixture.done().await;
    done.sort();
    done.dedup();
    assert_eq!(done.len(), MESSAGES, "each message is handled once");
}

/// Goal: a consumer that stops releases at once the messages whose handlers it has not started. The
/// release is not counted as an attempt.
#[tokio::test]
async fn shutdown_releases_prefetched_messages_unharmed() {
    const MESSAGES: usize = 15;
    let fixture = Fixture::new().await;
    for n in 0..MESSAGES {
        fixture.receive(&format!("m-{n:02}"), "").await;
    }
    let (begun, may_end) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(tokio::sync::Notify::new()),
    );
    let (seen, wait) = (Arc::clone(&begun), Arc::clone(&may_end));
    let slow = move |tx: Tx, message: Message| {
        let (seen, wait) = (Arc::clone(&seen), Arc::clone(&wait));
        async move {
            note(&tx, &message).await?;
            seen.fetch_add(1, Ordering::SeqCst);
            wait.notified().await;
            Ok(vec![])
        }
    };
    let pool = fixture.db.pool(4);
    // The lease is so long that no lease expires during the test.
    let source = fixture.source(&pool).lease(Duration::from_secs(3600));
    let stopping = Consumer::new(pool, source)
        .handle(fixture.to.as_str(), slow)
        .concurrency(1);
    let stopping = Running::start(stopping);
    until("the handler runs", async || {
        begun.load(Ordering::SeqCst) == 1
    })
    .await;
    until("the other messages are prefetched", async || {
        fixture.count("state = 'l'").await == MESSAGES as i64
    })
    .await;
    let ended = tokio::spawn(stopping.stop());
    may_end.notify_one();
    let summary = ended.await.unwrap();
    assert_eq!(
        (summary.handled, summary.returned),
        (1, MESSAGES as u64 - 1)
    );
    assert_eq!(
        fixture
            .count("state = 'r' AND attempt = 0 AND due_at <= now()")
            .await,
        MESSAGES as i64 - 1
    );
}

/// Goal: a stop that interrupts a leased handler does not release the lease of its message, because
/// a thread of the handler may still run. The attempt is counted. A message of the same batch whose
/// handler has not begun is released without counting.
#[tokio::test]
async fn interrupted_leased_handler_keeps_its_lease() {
    let fixture = Fixture::new().await;
    for id in ["begun", "waiting"] {
        fixture.receive(id, "").await;
    }
    let begun = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&begun);
    let handler = move |_: LeaseContext, _: Message| {
        seen.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    };
    let pool = fixture.db.pool(4);
    let source = fixture.source(&pool).lease(Duration::from_secs(3600));
    let stopping = Consumer::new(pool, source)
        .handle_leased(fixture.to.as_str(), handler)
        .batches(Batches::new(2).linger(Duration::from_secs(5)))
        .concurrency(1)
        .grace(Duration::from_millis(50));
    let stopping = Running::start(stopping);
    until("the handler runs", async || {
        begun.load(Ordering::SeqCst) == 1
    })
    .await;
    let summary = stopping.stop().await;
    assert_eq!(summary.given_back, 2);
    let rows = fixture
        .client
        .query(
            "SELECT id, state::text, attempt, due_at > now() + interval '1 minute'
               FROM idem.pending ORDER BY id",
            &[],
        )
        .await
        .unwrap();
    let rows: Vec<(String, String, i32, bool)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
        .collect();
    assert_eq!(
        rows,
        [
            ("begun".into(), "l".into(), 1, true),
            ("waiting".into(), "r".into(), 0, false)
        ]
    );
}

#[tokio::test]
async fn busy_consumer_releases_messages_that_wait_too_long() {
    const MESSAGES: usize = 10;
    let fixture = Fixture::new().await;
    for n in 0..MESSAGES {
        fixture.receive(&format!("m-{n}"), "").await;
    }
    let begun = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&begun);
    let stuck = move |tx: Tx, message: Message| {
        let seen = Arc::clone(&seen);
        async move {
            note(&tx, &message).await?;
            seen.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
    };
    let busy = Doomed::start(&fixture, |pool| {
        let source = fixture.source(&pool).lease(Duration::from_secs(6));
        Consumer::new(pool, source)
            .handle(fixture.to.as_str(), stuck)
            .concurrency(1)
    });
    until("the handler runs", async || {
        begun.load(Ordering::SeqCst) == 1
    })
    .await;
    let other = Running::start(
        fixture
            .consumer(&fixture.db.pool(4))
            .handle(fixture.to.as_str(), noting()),
    );
    fixture.until_done(MESSAGES - 1).await;
    assert_eq!(
        fixture.left().await,
        1,
        "the message that the busy consumer processes is left"
    );
    other.stop().await;
    busy.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_is_renewed_while_the_handler_runs() {
    // With `Eager`, the claim has deleted the row of the message. With `Reactive`, only the lease
    // excludes other consumers, so the lease must be renewed.
    for style in [Style::Eager, Style::Reactive] {
        let fixture = Fixture::new().await;
        fixture.receive("long", "").await;
        let runs = Arc::new(AtomicU32::new(0));
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let runs = Arc::clone(&runs);
                let slow = move |tx: Tx, message: Message| {
                    let runs = Arc::clone(&runs);
                    async move {
                        runs.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_secs(5)).await;
                        note(&tx, &message).await?;
                        Ok(vec![])
                    }
                };
                let pool = fixture.db.pool(4);
                let policies = Policies::default().default_rule(|policy| policy.style = style);
                let source = fixture.source(&pool).lease(Duration::from_millis(1500));
                let consumer = Consumer::new(pool, source)
                    .idem(Idem::builder().policies(policies).build().unwrap())
                    .handle(fixture.to.as_str(), slow);
                Running::start(consumer)
            })
            .collect();
        fixture.until_done(1).await;
        fixture.until_empty().await;
        for consumer in consumers {
            consumer.stop().await;
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{style:?}");
        assert_eq!(fixture.done().await, ["long"]);
    }
}

/// Goal: a message that crashes its consumers becomes a dead letter. All other messages are handled
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn poison_message_dies_without_harming_other_messages() {
    const MESSAGES: usize = 40;
    let fixture = Fixture::new().await;
    for n in 0..MESSAGES {
        let id = if n == 5 {
            "killer".to_owned()
        } else {
            format!("m-{n}")
        };
        fixture.receive(&id, "").await;
    }
    let lease = Duration::from_millis(600);
    let mut killed = 0;
    while fixture.dead().await.is_empty() {
        let begun = Arc::new(tokio::sync::Notify::new());
        let seen = Arc::clone(&begun);
        let handler = move |tx: Tx, message: Message| {
            let seen = Arc::clone(&seen);
            async move {
                note(&tx, &message).await?;
                if message.message_id() == Some("killer") {
                    seen.notify_one();
                    std::future::pending::<()>().await;
                }
                // This pause keeps other handlers running at the moment of the crash.
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok(vec![])
            }
        };
        let consumer = Doomed::start(&fixture, |pool| {
            let source = fixture.source(&pool).lease(lease);
            Consumer::new(pool, source)
                .handle(fixture.to.as_str(), handler)
                .concurrency(4)
        });
        tokio::select! {
            () = begun.notified() => killed += 1,
            () = until("it is a dead letter", async || !fixture.dead().await.is_empty()) => {}
        }
        consumer.kill();
    }
    let successor = Running::start(
        fixture
            .consumer(&fixture.db.pool(6))
            .handle(fixture.to.as_str(), noting()),
    );
    fixture.until_empty().await;
    successor.stop().await;
    assert_eq!(killed, 3, "every attempt crashes one consumer");
    let dead = fixture.dead().await;
    assert_eq!(
        dead,
        [("killer".to_owned(), 3, "the lease expired".to_owned())]
    );
    let mut done = fixture.done().await;
    done.sort();
    done.dedup();
    assert_eq!(
        (done.len(), fixture.count_done().await),
        (MESSAGES - 1, MESSAGES - 1)
    );
}

/// Goal: the renewals for a leased handler do not shorten the lease of the source. So the message
/// stays leased while the circuit breaker pauses its destination, and an outage uses no attempt.
#[tokio::test(flavor = "multi_thread")]
async fn outage_uses_no_attempt_of_a_leased_message() {
    const OUTAGES: usize = 4;
    let fixture = Fixture::new().await;
    fixture.receive("m-1", "").await;
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&attempts);
    let handler = move |work: LeaseContext, _: Message| {
        let seen = Arc::clone(&seen);
        async move {
            let runs = {
                let mut seen = seen.lock().unwrap();
                seen.push(work.attempt());
                seen.len()
            };
            // The keeper of the lease renews it several times.
            tokio::time::sleep(Duration::from_millis(300)).await;
            match runs {
                ..=OUTAGES => Err(HandlerError::unavailable("the provider returned 503")),
                _ => Ok(vec![]),
            }
        }
    };
    let policies =
        Policies::default().default_rule(|policy| policy.lease = Duration::from_millis(100));
    let consumer = fixture
        .consumer(&fixture.db.pool(4))
        .idem(Idem::builder().policies(policies).build().unwrap())
        .handle_leased(fixture.to.as_str(), handler);
    let running = Running::start(consumer);
    fixture.until_empty().await;
    let summary = running.stop().await;
    assert_eq!(*attempts.lock().unwrap(), [1; OUTAGES + 1]);
    assert_eq!((summary.handled, summary.rejected), (1, 0), "{summary:?}");
    assert_eq!(fixture.dead().await, []);
}
