//! Serves the partitions of a relay, with one task for each. Starts again when the number of
//! partitions changes: while processes serve a relay, an administrator can drop it and create it
//! again with another number of partitions in one transaction.

use std::{pin::pin, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use idem_client::{ErrorKind, preflight::relay_preflight, relay};
use tokio::{
    select,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{
    errors::{is_final, is_gone, worse},
    reporter::Reporter,
    settings::AWAY,
};
use crate::{
    Error,
    backoff::{Backoff, Pauses},
    connection::{STATEMENT, on_connection, wait_at_server},
    describe_metrics, panics,
};

/// The pauses of an idle partition without a notification. A partition must also find the batches
/// of a crashed process, and no notification is sent for them.
const IDLE: Pauses = Pauses::from_millis(50, 500);

/// The pause after a notification. It limits how often idle partitions query the database when
/// there are many commits per second.
const PAUSE_AFTER_COMMIT: Duration = Duration::from_millis(10);

/// A relay that a process serves.
pub(super) struct Serving<'a> {
    pub(super) pool: &'a Pool,
    pub(super) reporter: &'a Reporter,
    /// The interval at which the number of partitions is read.
    pub(super) recount: Duration,
    /// How long a task may continue after a stop.
    pub(super) grace: Duration,
}

/// What the task of one partition works with.
pub(super) struct PartitionTask {
    pub(super) reporter: Reporter,
    /// The number of partitions.
    pub(super) partitions: i32,
    pub(super) stop: CancellationToken,
    grace: Duration,
    commit_notifier: Arc<CommitNotifier>,
    commits: watch::Receiver<u64>,
    pub(super) idle: Backoff,
}

impl Serving<'_> {
    /// Serves all partitions until `shutdown` completes. Returns only permanent errors. `serve`
    /// returns the task of one partition, which ends when it is stopped or fails.
    pub(super) async fn run<F>(
        &self,
        shutdown: impl Future<Output = ()>,
        mut serve: impl FnMut(PartitionTask) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        describe_metrics();
        let mut shutdown = pin!(shutdown);
        let relay = &*self.reporter.relay;
        loop {
            let partitions = select! {
                partitions = self.partitions() => partitions?,
                () = &mut shutdown => return Ok(()),
            };
            info!(relay, partitions, "the relay has started");
            let (commit_notifier, stop) =
                (Arc::new(CommitNotifier::new()), CancellationToken::new());
            let mut tasks = JoinSet::new();
            for partition in 0..partitions {
                tasks.spawn(serve(PartitionTask {
                    reporter: self.reporter.of_partition(partition),
                    partitions,
                    stop: stop.clone(),
                    grace: self.grace,
                    commit_notifier: Arc::clone(&commit_notifier),
                    commits: commit_notifier.listen(),
                    idle: IDLE.start(),
                }));
            }
            let mut notifier = pin!(commit_notifier.run(self.pool));
            let mut changes = pin!(self.other_count(partitions));
            let (mut failed, mut is_requested) = (None, false);
            loop {
                select! {
                    ended = tasks.join_next() => {
                        let error = match ended {
                            None => break,
                            Some(Ok(ended)) => ended.err(),
                            Some(Err(ended)) => panics::of_task(ended),
                        };
                        if let Some(error) = error {
                            failed = worse(failed, error);
                            stop.cancel();
                        }
                    }
                    () = &mut shutdown, if !stop.is_cancelled() => {
                        is_requested = true;
                        stop.cancel();
                    }
                    () = &mut notifier, if !stop.is_cancelled() => {}
                    () = &mut changes, if !stop.is_cancelled() => stop.cancel(),
                }
            }
            match failed {
                Some(error) if !self.was_recreated(&error, partitions).await => return Err(error),
                _ if is_requested => return Ok(()),
                _ => self.reporter.partitions_are_gone(),
            }
        }
    }

    /// Waits until the database has everything that a relay needs, and returns the number of
    /// partitions.
    async fn partitions(&self) -> Result<i32, Error> {
        let mut away = AWAY.start();
        loop {
            let count = on_connection(self.pool, STATEMENT, async |client| {
                relay_preflight(&**client).await?;
                relay::partitions(&**client, &self.reporter.relay).await
            });
            match self.reporter.step(count.await) {
                Err(error) if !is_final(&error) => sleep(away.next()).await,
                result => return result,
            }
        }
    }

    async fn count(&self) -> Result<i32, Error> {
        on_connection(self.pool, STATEMENT, async |client| {
            relay::partitions(&**client, &self.reporter.relay).await
        })
        .await
    }

    /// Completes when the relay has another number of partitions. Errors are ignored here, because
    /// the statements of the partitions meet and log the same errors.
    async fn other_count(&self, before: i32) {
        loop {
            sleep(self.recount).await;
            if let Ok(now) = self.count().await
                && now != before
            {
                let relay = &*self.reporter.relay;
                info!(
                    relay,
                    before, now, "the relay was created again with another number of partitions"
                );
                return;
            }
        }
    }

    /// Returns whether an error shows that the relay was dropped or has another number of
    /// partitions. The server reports a partition that no longer exists as an argument out of
    /// range.
    async fn was_recreated(&self, error: &Error, partitions: i32) -> bool {
        if is_gone(error) {
            return true;
        }
        if error.kind() != ErrorKind::Invalid || error.sqlstate().is_none() {
            return false;
        }
        // If the number cannot be read now, treat the error as a change. The next attempt to read
        // the number waits for the database, and a permanent error then occurs again.
        self.count().await.map_or(true, |now| now != partitions)
    }
}

impl PartitionTask {
    /// Runs a statement that looks for work. Every commit after its start causes a notification,
    /// whether or not the statement finds its effects. So
    /// [`wait_for_commit`](Self::wait_for_commit) misses no commit.
    pub(super) async fn look<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        self.commits.mark_unchanged();
        self.within_grace(step).await
    }

    /// Runs a statement in the database. Returns `None` if the relay stops and no reply arrives
    /// within the grace period. A lease then expires by itself.
    pub(super) async fn within_grace<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let over = async {
            self.stop.cancelled().await;
            sleep(self.grace).await;
        };
        select! {
            biased;
            done = step => Some(done),
            () = over => None,
        }
    }

    /// Waits for a commit of effects, at most for a short time.
    pub(super) async fn wait_for_commit(&mut self) {
        let _idle = self.commit_notifier.idle();
        select! {
            () = self.stop.cancelled() => {}
            _ = self.commits.changed() => self.idle.reset(),
            () = sleep(self.idle.next()) => {}
        }
    }

    /// Waits for this time, or until the relay stops.
    pub(super) async fn rest(&self, pause: Duration) {
        let _ = timeout(pause, self.stop.cancelled()).await;
    }
}

/// Notifies the idle partitions of a process when effects are committed. One connection waits on
/// behalf of all idle partitions.
struct CommitNotifier {
    commits: watch::Sender<u64>,
    /// The number of idle partitions. While it is zero, no connection is used to wait.
    idle: watch::Sender<usize>,
}

impl CommitNotifier {
    fn new() -> Self {
        Self {
            commits: watch::Sender::default(),
            idle: watch::Sender::default(),
        }
    }

    fn listen(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// Counts a partition as idle until the returned guard is dropped.
    fn idle(&self) -> Idle<'_> {
        self.idle.send_modify(|idle| *idle += 1);
        Idle(self)
    }

    /// Sends a notification whenever effects are committed. Never ends.
    async fn run(&self, pool: &Pool) {
        let mut idle = self.idle.subscribe();
        let mut away = Pauses::from_millis(100, 2_000).start();
        loop {
            if idle.wait_for(|idle| *idle > 0).await.is_err() {
                return;
            }
            match wait_for_effects(pool).await {
                Ok(true) => {
                    away.reset();
                    self.commits.send_modify(|commits| *commits += 1);
                    sleep(PAUSE_AFTER_COMMIT).await;
                }
                Ok(false) => away.reset(),
                Err(error) => {
                    // The partitions meet the same error and log it.
                    debug!(%error, "cannot wait for effects");
                    sleep(away.next()).await;
                }
            }
        }
    }
}

struct Idle<'a>(&'a CommitNotifier);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.idle.send_modify(|idle| *idle -= 1);
    }
}

/// Waits for effects. When the future is dropped, its connection is closed, because the next user
/// of the connection would have to wait for this reply.
async fn wait_for_effects(pool: &Pool) -> Result<bool, Error> {
    on_connection(pool, STATEMENT, async |client| {
        relay::wait(&**client, wait_at_server(pool)).await
    })
    .await
}
