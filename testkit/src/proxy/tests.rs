//! The proxy loses the connection at COMMIT, and only when a test requests it.

use deadpool_postgres::Object;
use tokio_postgres::Error;

use super::{Cut, Proxy};
use crate::{Database, in_time, until};

/// The texts with which the clients of these tests commit.
const COMMITS: [&str; 2] = ["COMMIT", "SELECT 1; COMMIT"];

/// A database with a table, and a proxy in front of it.
async fn fixture() -> (Database, Proxy) {
    let database = Database::create();
    database.psql("CREATE TABLE work (id int)");
    let proxy = Proxy::to(&database).await;
    (database, proxy)
}

/// Inserts a row in a transaction. `before_commit` is called directly before COMMIT.
async fn insert(client: &Object, commit: &str, before_commit: impl FnOnce()) -> Result<(), Error> {
    client
        .batch_execute("BEGIN; INSERT INTO work VALUES (1)")
        .await?;
    before_commit();
    in_time(client.batch_execute(commit)).await
}

/// Returns the number of committed rows, after all sessions have ended.
async fn committed(database: &Database) -> String {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                  AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    until("the other sessions end", async || {
        database.psql(others).trim() == "0"
    })
    .await;
    database.psql("SELECT count(*) FROM work").trim().to_owned()
}

/// Invariant: after a cut before COMMIT the server has rolled back. After a cut after COMMIT it has
/// committed. Without a request COMMIT succeeds.
#[tokio::test]
async fn cut_happens_on_one_side_of_commit() {
    for commit in COMMITS {
        for (cut, rows) in [
            (None, "1"),
            (Some(Cut::BeforeCommit), "0"),
            (Some(Cut::AfterCommit), "1"),
        ] {
            let (database, proxy) = fixture().await;
            let client = proxy.pool(1).get().await.unwrap();
            let request = || cut.into_iter().for_each(|cut| proxy.cut_once(cut));
            let inserted = insert(&client, commit, request).await;
            drop(client);
            assert_eq!(inserted.is_err(), cut.is_some(), "{commit}, {cut:?}");
            assert_eq!(proxy.was_cut(), cut.is_some(), "{commit}, {cut:?}");
            assert_eq!(committed(&database).await, rows, "{commit}, {cut:?}");
        }
    }
}

/// Goal: a cut affects one connection. After a permanent cut, the proxy accepts no connection.
#[tokio::test]
async fn cut_affects_one_connection_unless_for_good() {
    let (_database, proxy) = fixture().await;
    let pool = proxy.pool(3);
    let (first, second) = (pool.get().await.unwrap(), pool.get().await.unwrap());
    let cut = || proxy.cut_once(Cut::BeforeCommit);
    insert(&first, "COMMIT", cut).await.unwrap_err();
    insert(&second, "COMMIT", || {}).await.unwrap();
    drop(pool.get().await.unwrap());
    let cut = || proxy.cut_for_good(Cut::AfterCommit);
    insert(&second, "COMMIT", cut).await.unwrap_err();
    assert!(proxy.pool(1).get().await.is_err());
}

/// Goal: the server rolls back when it executes COMMIT in a failed transaction. The proxy does not
/// treat this as a commit, and cuts after the next real commit.
#[tokio::test]
async fn rollback_in_place_of_commit_keeps_the_request() {
    let (_database, proxy) = fixture().await;
    let client = proxy.pool(1).get().await.unwrap();
    proxy.cut_once(Cut::AfterCommit);
    client
        .batch_execute("BEGIN; SELECT 1 / 0")
        .await
        .unwrap_err();
    // The driver reports success.
    client.batch_execute("COMMIT").await.unwrap();
    assert!(!proxy.was_cut());
    insert(&client, "COMMIT", || {}).await.unwrap_err();
    assert!(proxy.was_cut());
}
