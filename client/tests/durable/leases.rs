//! Whoever has a message keeps it as long as it lives, and no longer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_client::{Consumer, Idem, Message, Policies, Style, Tx};

use crate::{
    support::until,
    world::{Doomed, Running, World, note, noting},
};

#[tokio::test]
async fn the_messages_of_who_is_killed_are_handled_by_another_after_their_lease() {
    const MESSAGES: usize = 12;
    let world = World::new().await;
    for n in 0..MESSAGES {
        world
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
    let victim = Doomed::start(&world, |pool| {
        let source = world.source(&pool).lease(lease);
        Consumer::new(pool, source)
            .handle(world.to.as_str(), never)
            .concurrency(3)
    });
    until("it is at work", async || begun.load(Ordering::SeqCst) == 3).await;
    victim.kill();

    let heir = Running::start(
        world
            .consumer(&world.db.pool(6))
            .handle(world.to.as_str(), noting()),
    );
    world.until_done(MESSAGES).await;
    world.until_empty().await;
    let summary = heir.stop().await;
    assert_eq!((summary.handled, summary.duplicates), (MESSAGES as u64, 0));
    let mut done = world.done().await;
    done.sort();
    done.dedup();
    assert_eq!(done.len(), MESSAGES, "each once");
}

#[tokio::test]
async fn who_stops_gives_back_at_once_and_unharmed_what_it_has_not_begun() {
    const MESSAGES: usize = 15;
    let world = World::new().await;
    for n in 0..MESSAGES {
        world.receive(&format!("m-{n:02}"), "").await;
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
    let pool = world.db.pool(4);
    // Nobody else would wait for the end of such a lease.
    let source = world.source(&pool).lease(Duration::from_secs(3600));
    let leaves = Consumer::new(pool, source)
        .handle(world.to.as_str(), slow)
        .concurrency(1);
    let leaves = Running::start(leaves);
    until("it is at work", async || begun.load(Ordering::SeqCst) == 1).await;
    until("it has fetched ahead", async || {
        world.count("state = 'l'").await == MESSAGES as i64
    })
    .await;
    let ended = tokio::spawn(leaves.stop());
    may_end.notify_one();
    let summary = ended.await.unwrap();
    assert_eq!(
        (summary.handled, summary.returned),
        (1, MESSAGES as u64 - 1)
    );
    assert_eq!(
        world
            .count("state = 'r' AND attempt = 0 AND due_at <= now()")
            .await,
        MESSAGES as i64 - 1
    );
}

#[tokio::test]
async fn what_waits_too_long_here_goes_to_others() {
    const MESSAGES: usize = 10;
    let world = World::new().await;
    for n in 0..MESSAGES {
        world.receive(&format!("m-{n}"), "").await;
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
    let busy = Doomed::start(&world, |pool| {
        let source = world.source(&pool).lease(Duration::from_secs(6));
        Consumer::new(pool, source)
            .handle(world.to.as_str(), stuck)
            .concurrency(1)
    });
    until("it is at work", async || begun.load(Ordering::SeqCst) == 1).await;
    let other = Running::start(
        world
            .consumer(&world.db.pool(4))
            .handle(world.to.as_str(), noting()),
    );
    world.until_done(MESSAGES - 1).await;
    assert_eq!(world.left().await, 1, "all but the one that it is at");
    other.stop().await;
    busy.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_take_longer_than_its_lease() {
    // Eager: the claim has deleted the row. Reactive: the lease alone keeps others away, and has to
    // be renewed.
    for style in [Style::Eager, Style::Reactive] {
        let world = World::new().await;
        world.receive("long", "").await;
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
                let pool = world.db.pool(4);
                let policies = Policies::default().default_rule(|rule| rule.style(style));
                let source = world.source(&pool).lease(Duration::from_millis(1500));
                let consumer = Consumer::new(pool, source)
                    .idem(Idem::builder().policies(policies).build().unwrap())
                    .handle(world.to.as_str(), slow);
                Running::start(consumer)
            })
            .collect();
        world.until_done(1).await;
        world.until_empty().await;
        for consumer in consumers {
            consumer.stop().await;
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{style:?}");
        assert_eq!(world.done().await, ["long"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_kills_its_consumers_takes_no_other_with_it() {
    const MESSAGES: usize = 40;
    let world = World::new().await;
    for n in 0..MESSAGES {
        let id = if n == 5 {
            "killer".to_owned()
        } else {
            format!("m-{n}")
        };
        world.receive(&id, "").await;
    }
    let lease = Duration::from_millis(600);
    let mut killed = 0;
    while world.dead().await.is_empty() {
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
                // Others are at work when it kills.
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok(vec![])
            }
        };
        let consumer = Doomed::start(&world, |pool| {
            let source = world.source(&pool).lease(lease);
            Consumer::new(pool, source)
                .handle(world.to.as_str(), handler)
                .concurrency(4)
        });
        tokio::select! {
            () = begun.notified() => killed += 1,
            () = until("the killer is dead", async || !world.dead().await.is_empty()) => {}
        }
        consumer.kill();
    }
    let heir = Running::start(
        world
            .consumer(&world.db.pool(6))
            .handle(world.to.as_str(), noting()),
    );
    world.until_empty().await;
    heir.stop().await;
    assert_eq!(killed, 3, "all its attempts");
    let dead = world.dead().await;
    assert_eq!(
        dead,
        [("killer".to_owned(), 3, "the lease expired".to_owned())]
    );
    let mut done = world.done().await;
    done.sort();
    done.dedup();
    assert_eq!(
        (done.len(), world.count_done().await),
        (MESSAGES - 1, MESSAGES - 1)
    );
}
