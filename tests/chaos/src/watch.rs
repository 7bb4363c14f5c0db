//! Observes a campaign while it runs, and runs the maintenance from a client.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::{
    config::RETENTION,
    server_log::{LOOK, MAINTENANCE},
    site::Site,
};
use idem_demo::range::live::Flaw;
use idem_testkit::prioritize;

/// The interval between two reads of the statistics, and between two runs of the maintenance.
const PAUSE: Duration = Duration::from_secs(1);

/// Counts missing claims among the 500 oldest rows that are younger than 95 % of the retention. The
/// transaction writes the row after the claim, so the claim is a little older than the row.
const FORGOTTEN: &str = "
    SELECT count(*) FILTER (WHERE NOT idem_is_claimed(attempt, 'range.targets'))
      FROM (SELECT attempt FROM shot
             WHERE at_s > monotonic_s() - 0.95 * $1::float8 ORDER BY at_s LIMIT 500) old";

/// The observations during a campaign.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The PIDs of the background workers of idem.
    pub workers: BTreeSet<i32>,
    /// The number of updated rows of inbox and outbox. It is the maximum of all reads, because a
    /// crash resets the statistics. `None` before the first read.
    pub updated_rows: Option<u64>,
    /// The number of checks for updated rows.
    pub looks_for_updates: u64,
    /// The number of claims within their retention that were not found. `None` before the first
    /// check.
    pub forgotten: Option<u64>,
    /// The largest size of inbox and outbox, in bytes.
    pub most_bytes: u64,
    /// The number of completed `CALL idem_maintain()` of clients.
    pub maintenance_calls: u64,
}

impl Watched {
    /// Reads the tables and the statistics once.
    ///
    /// # Errors
    /// When a query fails.
    pub async fn look(&mut self, client: &Client) -> Result<()> {
        let (updated, bytes) = statistics(client).await?;
        self.note_statistics(updated, bytes);
        self.note_forgotten(forgotten(client).await?);
        Ok(())
    }

    fn note_forgotten(&mut self, forgotten: u64) {
        *self.forgotten.get_or_insert_default() += forgotten;
    }

    fn note_statistics(&mut self, updated_rows: u64, bytes: u64) {
        self.updated_rows = self.updated_rows.max(Some(updated_rows));
        self.looks_for_updates += 1;
        self.most_bytes = self.most_bytes.max(bytes);
    }
}

/// The running observation, which stops when this value is dropped.
pub struct Watch {
    watched: Arc<Mutex<Watched>>,
    tasks: JoinSet<()>,
}

impl Watch {
    /// Starts the observation and the maintenance by a client.
    #[must_use]
    pub fn start(site: &Arc<Site>, flaw: Option<Flaw>) -> Self {
        let watched = Arc::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(look(Arc::clone(site), Arc::clone(&watched)));
        tasks.spawn(look_for_claims(Arc::clone(site), Arc::clone(&watched)));
        tasks.spawn(look_for_workers(Arc::clone(site), Arc::clone(&watched)));
        tasks.spawn(maintain(Arc::clone(site), Arc::clone(&watched)));
        if flaw == Some(Flaw::SkippedFence) {
            tasks.spawn(rotate_at_once(Arc::clone(site)));
        }
        Self { watched, tasks }
    }

    /// Stops all tasks and returns the observations. After that no task uses the site.
    pub async fn stop(mut self) -> Watched {
        self.tasks.shutdown().await;
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Reads the statistics every second. After an error, for example while the primary is down, this
/// function connects again.
async fn look(site: Arc<Site>, watched: Arc<Mutex<Watched>>) {
    loop {
        if let Ok(client) = site.connect_as("postgres", LOOK).await {
            while let Ok((updated, bytes)) = statistics(&client).await {
                watched
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .note_statistics(updated, bytes);
                tokio::time::sleep(PAUSE).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn statistics(client: &Client) -> Result<(u64, u64)> {
    let row = client
        .query_one(
            "SELECT coalesce(sum(n_tup_upd), 0)::bigint,
                    coalesce(sum(pg_table_size(relid)), 0)::bigint
               FROM pg_stat_all_tables
              WHERE schemaname = 'idem' AND relname ~ '^(inbox_|outbox_[0-3]$)'",
            &[],
        )
        .await?;
    let count = |n| anyhow::Ok(u64::try_from(row.try_get::<_, i64>(n)?)?);
    Ok((count(0)?, count(1)?))
}

/// Checks every five seconds for claims that are missing before the end of their retention (I6).
async fn look_for_claims(site: Arc<Site>, watched: Arc<Mutex<Watched>>) {
    loop {
        if let Ok(client) = site.connect().await {
            while let Ok(forgotten) = forgotten(&client).await {
                watched
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .note_forgotten(forgotten);
                tokio::time::sleep(PAUSE * 5).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn forgotten(client: &Client) -> Result<u64> {
    let row = client
        .query_one(FORGOTTEN, &[&RETENTION.as_secs_f64()])
        .await?;
    Ok(u64::try_from(row.try_get::<_, i64>(0)?)?)
}

/// Records the PIDs of the workers and raises their priority. A worker that ends between two
/// queries is missed, which is harmless: a worker that blocks another process until the wait is
/// logged lives longer. Clients that run the maintenance are recognized in the log instead.
async fn look_for_workers(site: Arc<Site>, watched: Arc<Mutex<Watched>>) {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'idem%'";
    loop {
        if let Ok(client) = site.connect().await
            && raise_priority(&client).await.is_ok()
            && let Ok(look) = client.prepare(sql).await
        {
            let mut raised = BTreeSet::new();
            while let Ok(rows) = client.query(&look, &[]).await {
                let pids: BTreeSet<i32> =
                    rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
                for new in pids.difference(&raised) {
                    // The result is ignored, because the worker may have ended in the meantime.
                    let _ = prioritize(*new);
                }
                raised.clone_from(&pids);
                watched
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .workers
                    .extend(pids);
                tokio::time::sleep(PAUSE / 20).await;
            }
        }
        tokio::time::sleep(PAUSE / 2).await;
    }
}

/// Runs the maintenance from a client every second.
async fn maintain(site: Arc<Site>, watched: Arc<Mutex<Watched>>) {
    loop {
        if let Ok(client) = site.connect_as("postgres", MAINTENANCE).await
            && raise_priority(&client).await.is_ok()
        {
            while client.batch_execute("CALL idem_maintain()").await.is_ok() {
                watched
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .maintenance_calls += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Raises the priority of the backend of a session.
async fn raise_priority(client: &Client) -> Result<()> {
    let pid = client
        .query_one("SELECT pg_backend_pid()", &[])
        .await?
        .try_get(0)?;
    if !prioritize(pid) {
        eprintln!(
            "cannot raise the priority of maintenance; \
             waits for its locks may include waits for a processor"
        );
    }
    Ok(())
}

/// Plants the bug: rotates the ring without an opening and without a fence, once in a second.
async fn rotate_at_once(site: Arc<Site>) {
    loop {
        if let Ok(client) = site.connect().await {
            let _ = client.batch_execute("SET lock_timeout = '500ms'").await;
            while client
                .batch_execute("SELECT rotate_at_once()")
                .await
                .is_ok()
            {
                tokio::time::sleep(PAUSE).await;
            }
        }
        tokio::time::sleep(PAUSE / 10).await;
    }
}
