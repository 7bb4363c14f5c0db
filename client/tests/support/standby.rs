//! A server with an unreachable synchronous standby, so that commits do not complete.
//!
//! Such a commit must not be cancelled: other sessions would see its changes, although a promotion
//! of the standby can lose them. A duplicate would then be acknowledged, and its message would be
//! lost.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::{Database, until};

/// The number of client sessions that wait for the standby in a commit.
const COMMITTING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
    AND application_name <> 'first' AND wait_event = 'SyncRep'";

/// The number of client sessions that execute a statement.
const ACTIVE: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
    AND pid <> pg_backend_pid() AND state = 'active'";

/// Counts the sessions in which the client library looks for statements to cancel.
const CANCELLERS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND query LIKE '%pg_cancel_backend%'";

pub struct Standby<'d> {
    database: &'d Database,
    observer: Client,
    /// A session that commits in a loop until a commit has to wait for the standby.
    first: JoinHandle<()>,
}

impl<'d> Standby<'d> {
    /// Makes every later commit on the server wait. No other test may use the server.
    pub async fn away(database: &'d Database) -> Self {
        let observer = database.connect().await;
        let first = database.connect().await;
        first
            .batch_execute("SET application_name = 'first'")
            .await
            .unwrap();
        let sql = "ALTER SYSTEM SET synchronous_standby_names = 'away'; SELECT pg_reload_conf()";
        database.server.psql("postgres", sql);
        let first = tokio::spawn(async move {
            while first
                .batch_execute("CREATE TABLE t (); DROP TABLE t")
                .await
                .is_ok()
            {}
        });
        let standby = Self {
            database,
            observer,
            first,
        };
        let waits = "SELECT count(*) FROM pg_stat_activity \
                     WHERE application_name = 'first' AND wait_event = 'SyncRep'";
        until("a commit waits", async || standby.count(waits).await == 1).await;
        standby
    }

    /// Drops `work` while its commit waits for the standby. Panics if the client library cancels
    /// the commit.
    pub async fn drop_while_it_commits(&self, work: impl Future<Output = ()>) {
        let committing = self.count(COMMITTING).await + 1;
        tokio::select! {
            biased;
            () = work => panic!("the commit did not wait for the standby"),
            () = until("a commit waits", async || self.count(COMMITTING).await == committing) => {}
        }
        until("the client looks for statements", async || {
            self.count(CANCELLERS).await > 0 || self.count(COMMITTING).await < committing
        })
        .await;
        // Behind a pooler, the session stays open and its last query stays visible, so the test
        // cannot wait for it.
        if !self.database.server.is_proxied() {
            until("the client library has ended its search", async || {
                self.count(CANCELLERS).await == 0
            })
            .await;
        }
        assert_eq!(
            self.count(COMMITTING).await,
            committing,
            "a commit was cancelled"
        );
    }

    /// Makes commits independent of the standby again, and waits until all commits have ended.
    pub async fn returns(self) {
        self.first.abort();
        let sql = "ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()";
        self.database.server.psql("postgres", sql);
        until("the commits end", async || self.count(ACTIVE).await == 0).await;
    }

    async fn count(&self, sql: &str) -> i64 {
        self.observer.query_one(sql, &[]).await.unwrap().get(0)
    }
}
