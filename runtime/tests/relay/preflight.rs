//! I4: if the database lacks something that the relay needs, the status shows what is missing. The
//! relay waits until the database is repaired.

use deadpool_postgres::{Manager, Pool};
use idem_testkit::{Database, until};
use tokio_postgres::NoTls;

use crate::{
    broker::Broker,
    fixtures::{Running, quick, say},
};

/// Asserts that the relay waits and that its status contains these words. Then executes the SQL
/// `repair`, and asserts that the relay publishes its effect.
async fn assert_waits_and_names(db: &Database, pool: Pool, words: &[&str], repair: &str) {
    let client = db.client().await;
    let broker = Broker::default();
    let relay = Running::start(quick(pool, broker.clone()));
    until("the first status is set", async || {
        let status = relay.status.borrow();
        status.database || status.database_error.is_some()
    })
    .await;
    let reason = relay
        .status
        .borrow()
        .database_error
        .clone()
        .expect("the status has no database error");
    for word in words {
        assert!(reason.contains(word), "{word} is not in {reason:?}");
    }
    db.psql(repair);
    say(&client, None, "a").await;
    broker.until_taken(1).await;
    relay.stop().await;
}

fn version(version: &str) -> String {
    format!(
        "UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'idem';
         SELECT idem.invalidate('idem.ring'::regclass)"
    )
}

#[tokio::test]
async fn older_sql_is_named_with_both_versions() {
    let db = Database::create();
    db.psql(&version("0.0.9"));
    // The second version is the oldest one that the client supports.
    let words = [
        "58000: ",
        "0.0.9",
        "0.4.0",
        "client",
        "ALTER EXTENSION idem UPDATE",
    ];
    let installed = version(env!("CARGO_PKG_VERSION"));
    assert_waits_and_names(&db, db.pool(2), &words, &installed).await;
}

#[tokio::test]
async fn newer_sql_than_the_library_is_named() {
    let db = Database::create();
    db.psql(&version("9.9.9"));
    let ours = env!("CARGO_PKG_VERSION");
    let words = ["58000: ", "9.9.9", ours, "library", "restart the server"];
    assert_waits_and_names(&db, db.pool(2), &words, &version(ours)).await;
}

#[tokio::test]
async fn missing_grant_of_a_later_function_is_named_at_once() {
    let db = Database::create();
    let role = format!("partly_of_{}", db.name());
    let grant = format!("SELECT idem_grant('{role}', 'relay')");
    db.psql(&format!(
        "CREATE ROLE {role} LOGIN; {grant};
             REVOKE EXECUTE ON FUNCTION idem_relay_park(text, integer, bigint, uuid, text)
                 FROM {role}"
    ));
    let mut config: tokio_postgres::Config = db.direct_url().parse().unwrap();
    config.user(&role);
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(2)
        .build()
        .unwrap();
    assert_waits_and_names(
        &db,
        pool,
        &["42501: ", &role, "idem_relay_park", &grant],
        &grant,
    )
    .await;
}

#[tokio::test]
async fn extension_in_another_schema_is_named_with_its_schema() {
    let db = Database::create();
    db.psql("DROP EXTENSION idem; CREATE SCHEMA api; CREATE EXTENSION idem SCHEMA api");
    let words = [
        "42883: ",
        "extension idem is in schema \"api\"",
        "search_path",
        "PoolConfig::schema",
    ];
    let repair = "DROP EXTENSION idem; CREATE EXTENSION idem";
    assert_waits_and_names(&db, db.pool(2), &words, repair).await;
}
