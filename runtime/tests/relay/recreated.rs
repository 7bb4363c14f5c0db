//! I4: when a relay is dropped and created again in one transaction, its running processes continue
//! to work.

use std::time::Duration;

use idem_testkit::{Database, until};
use tokio_postgres::Client;

use crate::{
    broker::Broker,
    fixtures::{Running, quick, say, say_rounds, until_acknowledged},
};

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Drops the relay and creates it again in one transaction, so that each process sees a relay at
/// any time.
async fn create_again(client: &mut Client, partitions: i32) {
    let tx = client.transaction().await.unwrap();
    tx.batch_execute("SELECT idem_drop_relay('again')")
        .await
        .unwrap();
    let create = format!("SELECT idem_create_relay('again', {partitions})");
    tx.batch_execute(&create).await.unwrap();
    tx.commit().await.unwrap();
}

/// Goal: when a relay is created again with more partitions, its process serves all of them. The
/// relay is never missing. Invariant: I4.
#[tokio::test]
async fn i4_relay_recreated_with_more_partitions_serves_all() {
    let db = Database::create();
    let mut client = db.client().await;
    client
        .batch_execute("SELECT idem_create_relay('again')")
        .await
        .unwrap();
    let broker = Broker::default();
    let relay = quick(db.pool(3), broker.clone()).name("again");
    let relay = Running::start(relay.recount(Duration::from_millis(100)));
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    create_again(&mut client, 4).await;
    say_rounds(&mut client, &KEYS, 1).await;
    broker.until_taken(KEYS.len()).await;
    until_acknowledged(&client, "again").await;
    relay.stop().await;
}

/// Goal: when a relay is created again with fewer partitions, its process continues. Error 22023
/// tells the process that the number has changed, so the test does not shorten the interval of the
/// check. Invariant: I4.
#[tokio::test]
async fn i4_relay_recreated_with_fewer_partitions_continues() {
    let db = Database::create();
    let mut client = db.client().await;
    client
        .batch_execute("SELECT idem_create_relay('again', 4)")
        .await
        .unwrap();
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(3), broker.clone()).name("again"));
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    create_again(&mut client, 1).await;
    say(&client, None, "last").await;
    broker.until_taken(1).await;
    until_acknowledged(&client, "again").await;
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    relay.stop().await;
}
