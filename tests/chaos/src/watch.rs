//! Observes a campaign while it runs, and runs the maintenance from a client.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::Client;

use super::{
    config::RETENTION,
    server_log::{LOOK, MAINTENANCE},
    site::Site,
};
use idem_demo::range::live::Flaw;
use idem_testkit::prioritize;

/// The pause before a task opens a session again.
const PAUSE: Duration = Duration::from_millis(500);

/// The updated rows of inbox and outbox, and their size in bytes.
const STATISTICS: &str = "
    SELECT coalesce(sum(n_tup_upd), 0)::bigint, coalesce(sum(pg_table_size(relid)), 0)::bigint
      FROM pg_stat_all_tables
     WHERE schemaname = 'idem' AND relname ~ '^(inbox_|outbox_[0-3]$)'";

/// Counts missing claims among the 500 oldest rows that are younger than 95 % of the retention. The
/// transaction writes the row after the claim, so the claim is a little older than the row.
const FORGOTTEN: &str = "
    SELECT count(*) FILTER (WHERE NOT idem_is_claimed(attempt, 'range.targets'))
      FROM (SELECT attempt FROM shot
             WHERE at_s > monotonic_s() - 0.95 * $1::float8 ORDER BY at_s LIMIT 500) old";

const WORKERS: &str = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'idem%'";

/// The observations during a campaign.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The PIDs of the background workers of idem.
    pub workers: BTreeSet<i32>,
    /// The PIDs of those that ran at the last look.
    pub running: BTreeSet<i32>,
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
    /// The segments that a client opened in rings.
    pub segments: u64,
}

/// The running observation, which stops when this value is dropped.
pub struct Watch {
    watched: Arc<Mutex<Watched>>,
    tasks: JoinSet<()>,
}

/// What one task of a watch does again and again.
type Work = for<'w> fn(&'w Client, &'w Mutex<Watched>) -> BoxFuture<'w, Result<()>>;

/// One task of a watch.
#[derive(Clone, Copy)]
struct Task {
    /// The application name of its session.
    application: &'static str,
    /// Whether the backend of its session gets a higher priority.
    is_raised: bool,
    interval: Duration,
    work: Work,
}

const TASKS: [Task; 4] = [
    Task {
        application: LOOK,
        is_raised: false,
        interval: Duration::from_secs(1),
        work: |client, watched| look_at_statistics(client, watched).boxed(),
    },
    Task {
        application: "campaign",
        is_raised: false,
        interval: Duration::from_secs(5),
        work: |client, watched| look_for_claims(client, watched).boxed(),
    },
    Task {
        application: "campaign",
        is_raised: true,
        interval: Duration::from_millis(50),
        work: |client, watched| look_for_workers(client, watched).boxed(),
    },
    Task {
        application: MAINTENANCE,
        is_raised: true,
        interval: Duration::from_secs(1),
        work: |client, watched| maintain(client, watched).boxed(),
    },
];

/// Plants the bug: rotates the ring without an opening and without a fence.
const ROTATE_AT_ONCE: Task = Task {
    application: "campaign",
    is_raised: false,
    interval: Duration::from_secs(1),
    work: |client, _| rotate_at_once(client).boxed(),
};

impl Watch {
    /// Starts the observation and the maintenance by a client.
    #[must_use]
    pub fn start(site: &Arc<Site>, flaw: Option<Flaw>) -> Self {
        let watched = Arc::default();
        let mut tasks = JoinSet::new();
        let flawed = (flaw == Some(Flaw::SkippedFence)).then_some(ROTATE_AT_ONCE);
        for task in TASKS.into_iter().chain(flawed) {
            tasks.spawn(task.run(Arc::clone(site), Arc::clone(&watched)));
        }
        Self { watched, tasks }
    }

    /// Stops all tasks and returns the observations. After that no task uses the site.
    pub async fn stop(mut self) -> Watched {
        self.tasks.shutdown().await;
        lock(&self.watched).clone()
    }
}

impl Task {
    /// Repeats the work. After an error, for example while the primary is down, connects again.
    async fn run(self, site: Arc<Site>, watched: Arc<Mutex<Watched>>) {
        loop {
            if let Ok(client) = site.connect_as("postgres", self.application).await
                && (!self.is_raised || raise_priority(&client).await.is_ok())
            {
                while (self.work)(&client, &watched).await.is_ok() {
                    sleep(self.interval).await;
                }
            }
            sleep(PAUSE).await;
        }
    }
}

/// Reads the tables and the statistics once.
pub async fn look(client: &Client, watched: &Mutex<Watched>) -> Result<()> {
    look_at_statistics(client, watched).await?;
    look_for_claims(client, watched).await
}

async fn look_at_statistics(client: &Client, watched: &Mutex<Watched>) -> Result<()> {
    let row = client.query_one(STATISTICS, &[]).await?;
    let count = |n| anyhow::Ok(u64::try_from(row.try_get::<_, i64>(n)?)?);
    let (updated, bytes) = (count(0)?, count(1)?);
    let mut watched = lock(watched);
    watched.updated_rows = watched.updated_rows.max(Some(updated));
    watched.looks_for_updates += 1;
    watched.most_bytes = watched.most_bytes.max(bytes);
    Ok(())
}

/// Counts claims that are missing before the end of their retention (I6).
async fn look_for_claims(client: &Client, watched: &Mutex<Watched>) -> Result<()> {
    let row = client
        .query_one(FORGOTTEN, &[&RETENTION.as_secs_f64()])
        .await?;
    let forgotten = u64::try_from(row.try_get::<_, i64>(0)?)?;
    *lock(watched).forgotten.get_or_insert_default() += forgotten;
    Ok(())
}

/// Records the PIDs of the workers and raises their priority. A worker that ends between two looks
/// is missed, which is harmless: a worker that blocks another process until the wait is logged
/// lives longer. Clients that run the maintenance are recognized in the log instead.
async fn look_for_workers(client: &Client, watched: &Mutex<Watched>) -> Result<()> {
    let rows = client.query(WORKERS, &[]).await?;
    let pids: BTreeSet<i32> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
    let mut watched = lock(watched);
    for new in pids.difference(&watched.running) {
        // The result is ignored, because the worker may have ended in the meantime.
        let _ = prioritize(*new);
    }
    watched.workers.extend(&pids);
    watched.running = pids;
    Ok(())
}

async fn maintain(client: &Client, watched: &Mutex<Watched>) -> Result<()> {
    client.batch_execute("CALL idem_maintain()").await?;
    let opened: i64 = client
        .query_one("SELECT open_segments()", &[])
        .await?
        .try_get(0)?;
    let mut watched = lock(watched);
    watched.maintenance_calls += 1;
    watched.segments += opened.unsigned_abs();
    Ok(())
}

async fn rotate_at_once(client: &Client) -> Result<()> {
    client.batch_execute("SET lock_timeout = '500ms'").await?;
    Ok(client.batch_execute("SELECT rotate_at_once()").await?)
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

fn lock(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}
