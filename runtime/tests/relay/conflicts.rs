//! The relay does not report the database as unavailable after a serialization failure or a
//! deadlock.

use deadpool_postgres::{Manager, Pool};
use idem_testkit::{Database, log::Log, until};
use tokio_postgres::NoTls;
use tracing::Level;

use crate::{
    broker::Broker,
    environment::until_refused,
    fixtures::{Running, quick, say},
};

/// Renames `idem_relay_next`, and creates a function in its place that fails with a deadlock.
const DEADLOCKED: &str = "
    ALTER FUNCTION idem_relay_next(text, integer, integer, interval, bigint) RENAME TO original;
    CREATE FUNCTION idem_relay_next(text, integer, integer, interval, bigint)
    RETURNS TABLE (
        token bigint, seq bigint, message_id uuid, topic text, key text, type text, payload bytea,
        content_type text, headers jsonb, traceparent text, recorded_at timestamptz,
        source_destination text
    ) LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('attempts');
        RAISE 'deadlock detected' USING ERRCODE = '40P01';
    END $$";

/// Goal: when `idem_relay_next` fails with deadlocks, the relay logs no warning. Invariant: I4.
#[tokio::test]
async fn i4_deadlocks_leave_the_database_available() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.client().await;
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    client
        .batch_execute("CREATE SEQUENCE attempts")
        .await
        .unwrap();
    client.batch_execute(DEADLOCKED).await.unwrap();
    say(&client, Some("a"), "a-0").await;
    until("three deadlocks have occurred", async || {
        let three = "SELECT is_called AND last_value >= 3 FROM attempts";
        client
            .query_one(three, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
    assert_eq!(relay.status.borrow().database_error, None);
    let restore = "
        DROP FUNCTION idem_relay_next(text, integer, integer, interval, bigint);
        ALTER FUNCTION original(text, integer, integer, interval, bigint)
            RENAME TO idem_relay_next";
    client.batch_execute(restore).await.unwrap();
    broker.until_taken(1).await;
    relay.stop().await;
    assert_eq!(log.lines(Level::WARN, ""), [""; 0]);
}

/// Goal: if tables stay locked, `lock_timeout` ends the statements of the relay, and the relay
/// reports the database as unavailable. Invariant: I4.
#[tokio::test]
async fn i4_locked_tables_are_reported_with_a_lock_timeout() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let mut client = db.client().await;
    let mut config: tokio_postgres::Config = db.direct_url().parse().unwrap();
    config.options("-c lock_timeout=50ms");
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(2)
        .build()
        .unwrap();
    let broker = Broker::default();
    let relay = Running::start(quick(pool, broker.clone()));
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    let tx = client.transaction().await.unwrap();
    tx.batch_execute("LOCK TABLE idem.relay IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    until_refused(&db.client().await, 3).await;
    let reason = relay
        .status
        .borrow()
        .database_error
        .clone()
        .expect("the status has no database error");
    assert!(reason.starts_with("55P03: "), "{reason}");
    tx.commit().await.unwrap();
    until("the database is available", async || {
        relay.status.borrow().database
    })
    .await;
    say(&client, Some("a"), "a-0").await;
    broker.until_taken(1).await;
    relay.stop().await;
    let warnings = log.lines(Level::WARN, "is not available to the relay");
    assert!(!warnings.is_empty(), "no warning was logged");
}
