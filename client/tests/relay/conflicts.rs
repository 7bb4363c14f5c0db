//! A lost conflict is a reply of a database that serves.

use tracing::Level;

use crate::{
    broker::Broker,
    log::Log,
    support::{Database, until},
    world::{Running, quick, say},
};

/// What fails in the place of `idem_relay_next`.
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

/// Goal: deadlocks of `idem_relay_next` raise no alarm. Invariant: I4.
#[tokio::test]
async fn i4_lost_conflicts_leave_the_database_available() {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.connect().await;
    let broker = Broker::default();
    let relay = Running::start(quick(db.pool(2), broker.clone()));
    until("it serves", async || relay.status.borrow().database).await;
    client.batch_execute("CREATE SEQUENCE attempts").await.unwrap();
    client.batch_execute(DEADLOCKED).await.unwrap();
    say(&client, Some("a"), "a-0").await;
    until("it lost three conflicts", async || {
        let three = "SELECT is_called AND last_value >= 3 FROM attempts";
        client.query_one(three, &[]).await.unwrap().get(0)
    })
    .await;
    assert_eq!(relay.status.borrow().database_error, None);
    let restore = "
        DROP FUNCTION idem_relay_next(text, integer, integer, interval, bigint);
        ALTER FUNCTION original(text, integer, integer, interval, bigint) RENAME TO idem_relay_next";
    client.batch_execute(restore).await.unwrap();
    broker.until_taken(1).await;
    relay.stop().await;
    assert_eq!(log.lines(Level::WARN, ""), [""; 0]);
}
