//! I4: an incomplete setup of the database is reported before the first message is fetched.

use std::{future::pending, time::Duration};

use deadpool_postgres::Pool;
use idem_runtime::{Consumer, consumer::ConsumerStatus};
use idem_testkit::{broker::Broker, source_ended};

use crate::fixtures::{Fixture, in_time, message, noting, until};

const SHORT: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_millis(16);

/// Asserts that the consumer waits with a reason that contains `words`, and handles its message
/// after the SQL in `mend` was executed.
async fn assert_waits_with_reason(fixture: &Fixture, pool: Pool, words: &[&str], mend: &str) {
    let broker = Broker::with([message("m", "")]);
    let consumer = Consumer::new(pool, broker.clone())
        .handle("preflight", noting())
        .back_off(SHORT, LONG)
        .max_deliveries(1);
    let mut status = consumer.status();
    let running = tokio::spawn(consumer.run(pending()));
    let has_begun = |status: &ConsumerStatus| status.paused.is_some() || status.has_started;
    let paused = in_time(status.wait_for(has_begun))
        .await
        .unwrap()
        .paused
        .clone();
    let reason = paused.expect("the consumer does not wait");
    for word in words {
        assert!(reason.contains(word), "{word} is missing in {reason:?}");
    }
    assert_eq!(
        broker.told().asked,
        0,
        "a message was fetched before the database was complete"
    );
    fixture.psql(mend);
    let broker = broker.closed();
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 0, 0)
    );
    assert_eq!(broker.told().acknowledged.len(), 1);
}

#[tokio::test]
async fn missing_grant_of_a_later_function_is_reported_at_start() {
    let fixture = Fixture::new().await;
    fixture.psql(
        "CREATE ROLE partly LOGIN; GRANT INSERT ON done TO partly;
         GRANT USAGE ON SEQUENCE done_place_seq TO partly;
         SELECT idem_grant('partly', 'consumer');
         REVOKE EXECUTE ON FUNCTION
         idem_reject(text, text, bytea, text, jsonb, text, text, text, text) FROM partly",
    );
    let words = [
        "42501: ",
        "role \"partly\"",
        "idem_reject",
        "SELECT idem_grant('partly', 'consumer')",
    ];
    assert_waits_with_reason(
        &fixture,
        fixture.pool_of("partly"),
        &words,
        "SELECT idem_grant('partly', 'consumer')",
    )
    .await;
}

#[tokio::test]
async fn extension_in_another_schema_is_reported_with_schema() {
    let fixture = Fixture::new().await;
    fixture.psql(
        "DROP EXTENSION idem; CREATE SCHEMA \"The API\"; CREATE EXTENSION idem SCHEMA \"The API\"",
    );
    let words = [
        "42883: ",
        "extension idem is in schema \"The API\"",
        "search_path",
        "PoolConfig::schema",
    ];
    let mend = "DROP EXTENSION idem; CREATE EXTENSION idem";
    assert_waits_with_reason(&fixture, fixture.pool.clone(), &words, mend).await;
}

#[tokio::test]
async fn missing_extension_is_reported_with_database() {
    let fixture = Fixture::new().await;
    fixture.psql("DROP EXTENSION idem");
    let words = [
        "extension idem is not installed in database \"test_",
        "CREATE EXTENSION idem",
    ];
    assert_waits_with_reason(
        &fixture,
        fixture.pool.clone(),
        &words,
        "CREATE EXTENSION idem",
    )
    .await;
}

#[tokio::test]
async fn older_sql_version_is_reported_with_both_versions() {
    let fixture = Fixture::new().await;
    let version = |version: &str| {
        format!(
            "UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'idem';
             SELECT idem.invalidate('idem.ring'::regclass)"
        )
    };
    fixture.psql(&version("0.0.9"));
    // The second version is the oldest one that the client supports.
    let words = [
        "58000: ",
        "0.0.9",
        "0.4.0",
        "client",
        "ALTER EXTENSION idem UPDATE",
    ];
    assert_waits_with_reason(
        &fixture,
        fixture.pool.clone(),
        &words,
        &version(env!("CARGO_PKG_VERSION")),
    )
    .await;
}

/// I4: when the versions of the library and the SQL no longer match while a consumer runs, no
/// message is rejected and no attempt is used.
#[tokio::test]
async fn i4_version_mismatch_uses_no_attempt() {
    let version = |version: &str| {
        format!(
            "UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'idem';
             SELECT idem.invalidate('idem.ring'::regclass)"
        )
    };
    assert_no_attempt_is_used(&version("9.9.9"), &version(env!("CARGO_PKG_VERSION"))).await;
}

/// I4, I12: when a restore begins while a consumer runs, no message is rejected and no attempt is
/// used.
#[tokio::test]
async fn i4_restore_uses_no_attempt() {
    let begins = "INSERT INTO idem.loaded_table VALUES ('clock', pg_current_xact_id())";
    assert_no_attempt_is_used(begins, "DELETE FROM idem.loaded_table").await;
}

/// Runs a consumer, breaks the database and mends it again. Asserts that the consumer rejects no
/// message and uses no attempt.
async fn assert_no_attempt_is_used(breaks: &str, mends: &str) {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("first", "")]);
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .handle("versions", noting())
        .back_off(SHORT, LONG)
        .max_deliveries(1);
    let running = tokio::spawn(consumer.run(pending()));
    until("the first message is acknowledged", async || {
        broker.told().acknowledged.len() == 1
    })
    .await;
    fixture.psql(breaks);
    broker.send(message("second", ""));
    until("the claim of the second message has failed", async || {
        broker.told().released.len() + broker.told().rejected.len() > 0
    })
    .await;
    assert_eq!(
        broker.told().rejected,
        [],
        "a message was rejected because of the database"
    );
    fixture.psql(mends);
    drop(broker.clone().closed());
    let summary = source_ended(in_time(running).await.unwrap());
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (2, 0, 0)
    );
}
