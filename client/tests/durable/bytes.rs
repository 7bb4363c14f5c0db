//! What a source of the inbox fetches ahead is limited in bytes.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::{Hook, HookError, Manager, Pool};
use idem_client::{
    Settlement, Source,
    durable::{Letter, receive},
};
use tokio::sync::Semaphore;
use tokio_postgres::NoTls;

use crate::{
    support::{in_time, until},
    world::{World, id_of},
};

const MIB: usize = 1024 * 1024;

async fn receive_large(world: &World, count: usize) {
    for number in 0..count {
        let letter = Letter::json(&"x".repeat(MIB)).unwrap();
        let id = id_of(&format!("m-{number}"));
        assert!(receive(&world.client, &id, &world.to, &letter).await.unwrap());
    }
}

/// Goal: a batch of 20 large messages does not lie in memory. What does not fit goes back.
#[tokio::test(flavor = "multi_thread")]
async fn messages_fetched_ahead_stay_within_their_bytes() {
    let world = World::new().await;
    receive_large(&world, 20).await;
    // What waits for a sixth of its lease goes back in any case.
    let source = world.source(&world.db.pool(4)).lease(Duration::from_secs(3600));
    let mut source = source.max_bytes(4 * MIB + 1024);
    let first = in_time(source.next()).await.unwrap().unwrap();
    until("what does not fit is given back", async || {
        world.count("state = 'l'").await <= 4
    })
    .await;
    drop(first);
    in_time(source.close()).await;
}

/// Order: what is given back comes again before its successors.
#[tokio::test(flavor = "multi_thread")]
async fn limit_of_bytes_keeps_the_order_of_the_inbox() {
    for max_bytes in [1, 2 * MIB + 1024] {
        let world = World::new().await;
        receive_large(&world, 8).await;
        let mut source = world.source(&world.db.pool(4)).max_bytes(max_bytes);
        let mut ids = Vec::new();
        for _ in 0..8 {
            let delivery = in_time(source.next()).await.unwrap().unwrap();
            ids.push(delivery.message().message_id().unwrap().to_owned());
            delivery.settle(Settlement::Acknowledge).await.unwrap();
        }
        let expected: Vec<_> = (0..8).map(|number| format!("m-{number}")).collect();
        assert_eq!(ids, expected, "with {max_bytes} bytes");
        in_time(source.close()).await;
    }
}

/// Goal: a database that becomes slow while a source gives back what does not fit. What fits is
/// handed out meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn message_that_fits_does_not_wait_for_others_to_go_back() {
    let world = World::new().await;
    receive_large(&world, 4).await;
    // The first checkout makes a connection and fetches. Each later one waits at the gate.
    let gate = Arc::new(Semaphore::new(0));
    let at_gate = Arc::clone(&gate);
    let manager = Manager::new(world.db.url().parse().unwrap(), NoTls);
    let pool = Pool::builder(manager).max_size(1).pre_recycle(Hook::async_fn(move |_, _| {
        let gate = Arc::clone(&at_gate);
        Box::pin(async move {
            gate.acquire()
                .await
                .map(|permit| permit.forget())
                .map_err(|_| HookError::message("no gate"))
        })
    }));
    let mut source = world.source(&pool.build().unwrap()).max_bytes(MIB + 1024);
    let first = in_time(source.next()).await.unwrap().unwrap();
    assert_eq!(first.message().message_id(), Some("m-0"));
    assert_eq!(world.count("state = 'l'").await, 4, "the others are not back yet");
    gate.add_permits(1000);
    until("what does not fit is given back", async || {
        world.count("state = 'l'").await <= 2
    })
    .await;
    first.settle(Settlement::Acknowledge).await.unwrap();
    in_time(source.close()).await;
}
