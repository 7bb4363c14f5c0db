//! The tasks that process messages, and how they end.

use tokio::task::JoinSet;

use crate::{Error, panics};

/// The workers of a consumer, and the first panic that ended one of them.
pub(super) struct Workers {
    tasks: JoinSet<()>,
    panicked: Option<Error>,
}

impl Workers {
    pub(super) fn new() -> Self {
        Self {
            tasks: JoinSet::new(),
            panicked: None,
        }
    }

    pub(super) fn spawn(&mut self, worker: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(worker);
    }

    /// Waits until a worker has panicked or all workers have ended. Cancel safe.
    ///
    /// A worker that panicked may have left an ordering key busy, and later messages of this key
    /// would wait without end. So the consumer must then stop the other workers too.
    pub(super) async fn panicked_or_ended(&mut self) {
        while self.panicked.is_none() && self.join_next().await {}
    }

    /// Waits until all workers have ended. Cancel safe.
    pub(super) async fn ended(&mut self) {
        while self.join_next().await {}
    }

    /// Waits for one worker to end. Returns false when no worker is left.
    async fn join_next(&mut self) -> bool {
        let Some(ended) = self.tasks.join_next().await else {
            return false;
        };
        if let Some(error) = ended.err().and_then(panics::of_task) {
            tracing::error!(%error, "a panic of a worker stops the consumer");
            self.panicked.get_or_insert(error);
        }
        true
    }

    /// Aborts the workers that are still running.
    pub(super) async fn abort(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Returns the first panic.
    pub(super) fn into_error(self) -> Option<Error> {
        self.panicked
    }
}
