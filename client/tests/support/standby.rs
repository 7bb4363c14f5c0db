//! A server whose synchronous standby is away: no commit ends.
//!
//! A commit that is cancelled meanwhile is seen by others although a promotion can lose it. A
//! duplicate would be acknowledged then, and its message lost.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::{Database, until};

/// How many sessions of the client wait for the standby.
const COMMITTING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
    AND application_name <> 'first' AND wait_event = 'SyncRep'";

/// How many sessions execute a statement.
const ACTIVE: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
    AND pid <> pg_backend_pid() AND state = 'active'";

/// How many sessions of the client look for statements to cancel.
const CANCELLERS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND query LIKE '%pg_cancel_backend%'";

pub struct Standby<'d> {
    database: &'d Database,
    observer: Client,
    /// Commits until it has to wait.
    first: JoinHandle<()>,
}

impl<'d> Standby<'d> {
    /// From now on, no commit of the server ends. The server serves one test alone.
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
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'first' AND wait_event = 'SyncRep'";
        until("a commit waits", async || standby.count(waits).await == 1).await;
        standby
    }

    /// Drops the future while its commit waits, and fails when its client does not let the commit
    /// go on.
    pub async fn drop_while_it_commits(&self, work: impl Future<Output = ()>) {
        let committing = self.count(COMMITTING).await + 1;
        tokio::select! {
            biased;
            () = work => panic!("it was to wait for the standby"),
            () = until("the commit waits", async || self.count(COMMITTING).await == committing) => {}
        }
        until("the client has looked", async || {
            self.count(CANCELLERS).await > 0 || self.count(COMMITTING).await < committing
        })
        .await;
        // A pooler keeps the session.
        if !self.database.server.is_proxied() {
            until("the client looks no more", async || {
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

    /// All commits end, and can be seen.
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
