//! Notifies the idle partitions of a process when effects are committed. One connection waits on
//! behalf of all idle partitions.

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::relay;
use tokio::{sync::watch, time::sleep};
use tracing::debug;

use crate::{
    Error,
    backoff::Backoff,
    connection::{STATEMENT, on_connection, wait_at_server},
};

/// The pause after a notification. It limits how often idle partitions query the database when
/// there are many commits per second.
const PAUSE_AFTER_COMMIT: Duration = Duration::from_millis(10);

pub(super) struct CommitNotifier {
    commits: watch::Sender<u64>,
    /// The number of idle partitions. While it is zero, no connection is used to wait.
    idle: watch::Sender<usize>,
}

impl CommitNotifier {
    pub(super) fn new() -> Self {
        Self {
            commits: watch::Sender::default(),
            idle: watch::Sender::default(),
        }
    }

    pub(super) fn listen(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// Counts a partition as idle until the returned guard is dropped.
    pub(super) fn idle(&self) -> Idle<'_> {
        self.idle.send_modify(|idle| *idle += 1);
        Idle(self)
    }

    /// Sends a notification whenever effects are committed. Never ends.
    pub(super) async fn run(&self, pool: &Pool) {
        let mut idle = self.idle.subscribe();
        let mut away = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            if idle.wait_for(|idle| *idle > 0).await.is_err() {
                return;
            }
            match wait(pool).await {
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

pub(super) struct Idle<'b>(&'b CommitNotifier);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.idle.send_modify(|idle| *idle -= 1);
    }
}

/// Waits for effects. When the future is dropped, its connection is closed, because the next user
/// of the connection would have to wait for this reply.
async fn wait(pool: &Pool) -> Result<bool, Error> {
    on_connection(pool, STATEMENT, async |client| {
        relay::wait(&**client, wait_at_server(pool)).await
    })
    .await
}
