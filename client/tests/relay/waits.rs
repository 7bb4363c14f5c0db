//! A step in the database that gets no answer is given up.

use std::time::Duration;

use crate::{
    broker::Broker,
    support::{Database, until},
    world::{Running, quick, say, until_acknowledged},
};

/// Goal: a step that waits for a lock holds neither its connection nor its partition for ever, is
/// seen in the status, and leaves no statement behind.
#[tokio::test]
async fn step_without_an_answer_is_given_up_and_repeated() {
    let db = Database::create();
    let (client, mut holder) = (db.connect().await, db.connect().await);
    let lock = holder.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE idem.progress_0, idem.progress_1")
        .await
        .unwrap();
    let broker = Broker::default();
    // The answer to a step is of no use after the lease, or 5 s.
    let relay = quick(db.pool(2), broker.clone()).lease(Duration::from_secs(1));
    let relay = Running::start(relay);
    until("the status says why", async || {
        let error = relay.status.borrow().database_error.clone();
        error.is_some_and(|error| error.contains("did not respond within"))
    })
    .await;
    until("no step waits for longer", async || {
        let old = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()
                   AND query LIKE '%idem_relay_next%' AND state = 'active' AND pid <> pg_backend_pid()
                   AND query_start < clock_timestamp() - interval '8 seconds'";
        client.query_one(old, &[]).await.unwrap().get(0)
    })
    .await;
    lock.commit().await.unwrap();
    say(&client, Some("a"), "a-0").await;
    broker.until_taken(1).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
}
