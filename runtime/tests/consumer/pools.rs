//! Services can share a small pool. A pool that is too small is an error at the start.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, Pool};
use idem_client::Effect;
use idem_runtime::{
    Consumer, Error, Idem, Message, OutgoingMessage, Policies, Processed, PublishError, Publisher,
    Relay, Tx, policy::Policy,
};
use idem_testkit::broker::Broker;
use tokio::try_join;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{DEADLINE, Fixture, in_time, message, noting, until};

/// The lease time of a message. Each handler runs longer than this.
const LEASE: Duration = Duration::from_secs(2);
const WORK: &str = "SELECT pg_sleep(2.5)";

fn counting() -> Idem {
    let rule = |policy: &mut Policy| {
        policy.count_attempts = true;
        policy.lease = LEASE;
    };
    let policies = Policies::default().default_rule(rule);
    Idem::builder().policies(policies).build().unwrap()
}

/// A publisher that processes each effect with a connection of the pool.
struct Board(Pool);

impl Publisher for Board {
    async fn publish(&self, effect: &OutgoingMessage) -> Result<(), PublishError> {
        let processed = Idem::new()
            .process(
                &self.0,
                &message(effect.message_id.to_string(), ""),
                noting(),
            )
            .await;
        let unavailable = |error: Error| PublishError::Unavailable(error.into());
        processed.map(drop).map_err(unavailable)
    }
}

/// Runs a consumer and a relay in one task until the relay has published `effects` effects.
async fn run_until_published(
    fixture: &Fixture,
    effects: usize,
    consumer: Consumer<Broker>,
    relay: Relay<Board>,
) {
    let stop = CancellationToken::new();
    let published = async {
        until("all effects are published", async || {
            fixture.done().await.len() == effects
        })
        .await;
        stop.cancel();
        Ok(())
    };
    let running = async {
        try_join!(
            consumer.run(stop.cancelled()),
            relay.run(stop.cancelled()),
            published
        )
    };
    in_time(running).await.unwrap();
}

fn pool_of(fixture: &Fixture, connections: usize) -> Pool {
    let manager = Manager::new(fixture.database.url().parse().unwrap(), NoTls);
    Pool::builder(manager)
        .max_size(connections)
        .build()
        .unwrap()
}

/// Leases of running handlers are renewed and a relay with four partitions publishes the effects,
/// although more handlers wait for a connection than the pool has connections.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_lease_renewal_and_relay_share_a_pool_of_two() {
    const MESSAGES: usize = 5;
    let fixture = Fixture::new().await;
    let pool = pool_of(&fixture, 2);
    {
        let observer = fixture.pool.get().await.unwrap();
        observer
            .batch_execute("SELECT idem_create_relay('local', 4, true)")
            .await
            .unwrap();
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |tx: Tx, message: Message| {
        counted.fetch_add(1, SeqCst);
        async move {
            tx.batch_execute(WORK).await?;
            let id = message.message_id().unwrap_or_default();
            Ok(vec![Effect::json("board", &id)?.key(id)])
        }
    };
    let broker = Broker::with((0..MESSAGES).map(|n| message(format!("m-{n}"), "")));
    let consumer = Consumer::new(pool.clone(), broker.clone())
        .idem(counting())
        .handle("pools", handler)
        .concurrency(6);
    let relay = Relay::new(pool.clone(), Board(pool))
        .name("local")
        .lease(LEASE);
    run_until_published(&fixture, MESSAGES, consumer, relay).await;
    assert_eq!(broker.told().acknowledged.len(), MESSAGES);
    assert_eq!(
        runs.load(SeqCst),
        MESSAGES,
        "a lease was lost while its handler ran"
    );
}

/// With a pool of one connection, a consumer that needs two connections at the same time does not
/// start, and `Idem::process` fails.
#[tokio::test(flavor = "multi_thread")]
async fn counted_attempts_with_a_pool_of_one_are_an_error() {
    let fixture = Fixture::new().await;
    let pool = pool_of(&fixture, 1);
    let broker = Broker::with([message("m-1", "")]);
    let consumer = Consumer::new(pool.clone(), broker.clone())
        .idem(counting())
        .handle("pools", noting());
    let done = until("the message is acknowledged", async || {
        broker.told().acknowledged.len() == 1
    });
    match in_time(consumer.run(done)).await {
        Err(Error::Invalid(why)) => assert!(why.contains("two connections"), "{why}"),
        other => panic!("not the expected error: {other:?}"),
    }
    let processed = counting()
        .process(&pool, &message("m-2", ""), noting())
        .await;
    match processed {
        Err(Error::Pool(why)) => assert!(why.contains("two connections"), "{why}"),
        other => panic!("not the expected error: {other:?}"),
    }
}

/// A relay and handlers without counted attempts can share a pool of one connection.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_and_relay_share_a_pool_of_one() {
    const MESSAGES: usize = 20;
    let fixture = Fixture::new().await;
    let pool = pool_of(&fixture, 1);
    let handler = |tx: Tx, message: Message| async move {
        let id = message.message_id().unwrap_or_default();
        drop(tx);
        Ok(vec![Effect::json("board", &id)?.key(id)])
    };
    let broker = Broker::with((0..MESSAGES).map(|n| message(format!("m-{n}"), "")));
    let consumer = Consumer::new(pool.clone(), broker.clone())
        .handle("pools", handler)
        .concurrency(6);
    let relay = Relay::new(pool.clone(), Board(pool));
    run_until_published(&fixture, MESSAGES, consumer, relay).await;
    assert_eq!(broker.told().acknowledged.len(), MESSAGES);
}

/// Another task keeps the only connection of a pool without time limits. A wait for a connection of
/// this pool ends with an error of the environment.
#[tokio::test]
async fn wait_for_an_exhausted_pool_times_out() {
    let fixture = Fixture::new().await;
    let pool = pool_of(&fixture, 1);
    let kept = pool.get().await.unwrap();
    tokio::time::pause();
    let message = message("m-1", "");
    let idem = Idem::new();
    let processed =
        tokio::time::timeout(10 * DEADLINE, idem.process(&pool, &message, noting())).await;
    tokio::time::resume();
    match processed {
        Ok(Err(Error::Pool(why))) => assert!(why.contains("within"), "{why}"),
        other => panic!("the wait for a connection did not time out: {other:?}"),
    }
    drop(kept);
    let processed = in_time(idem.process(&pool, &message, noting())).await;
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{processed:?}"
    );
}
