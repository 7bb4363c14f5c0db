//! The relay abandons a database statement that does not respond in time.

use std::time::Duration;

use idem_testkit::{Database, until};

use crate::{
    broker::Broker,
    fixtures::{Running, quick, say, until_acknowledged},
};

/// Goal: a statement that waits for a lock does not hold its connection and its partition forever.
/// The status shows the wait, and no statement continues to run at the server.
#[tokio::test]
async fn step_without_a_response_is_abandoned_and_repeated() {
    let db = Database::create();
    let (client, mut holder) = (db.client().await, db.client().await);
    let lock = holder.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE idem.progress_0, idem.progress_1")
        .await
        .unwrap();
    let broker = Broker::default();
    // The relay waits at most for the lease time or for 5 s, because a later response is useless.
    let relay = quick(db.pool(2), broker.clone()).lease(Duration::from_secs(1));
    let relay = Running::start(relay);
    until("the status shows the reason", async || {
        let error = relay.status.borrow().database_error.clone();
        error.is_some_and(|error| error.contains("did not respond within"))
    })
    .await;
    until("no step runs for longer", async || {
        let old = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()
                   AND query LIKE '%idem_relay_next%' AND state = 'active'
                   AND pid <> pg_backend_pid()
                   AND query_start < clock_timestamp() - interval '8 seconds'";
        client.query_one(old, &[]).await.unwrap().get::<_, bool>(0)
    })
    .await;
    lock.commit().await.unwrap();
    say(&client, Some("a"), "a-0").await;
    broker.until_taken(1).await;
    until_acknowledged(&client, "default").await;
    relay.stop().await;
}
