//! Waits for the tasks that serve the partitions of a relay, and stops them together.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use tokio::{select, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    commit_notifier::CommitNotifier,
    errors::worse,
    recreated::{Counted, Ended},
};
use crate::{Error, panics};

/// The tasks of all partitions, one for each. `T` is the result of a task.
pub(super) struct Serving<'a, T> {
    pub(super) counted: Counted<'a>,
    /// The interval at which the number of partitions is read.
    pub(super) recount: Duration,
    pub(super) commit_notifier: &'a CommitNotifier,
    /// Stops the tasks.
    pub(super) stop: CancellationToken,
    pub(super) tasks: JoinSet<T>,
}

impl<T: 'static> Serving<'_, T> {
    /// Waits until all tasks have ended. Stops them when `shutdown` completes, when the number of
    /// partitions changes, and when a task fails or panics. `error_of` returns the error of a task
    /// that has ended.
    pub(super) async fn ended(
        mut self,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
        mut error_of: impl FnMut(T) -> Option<Error>,
    ) -> Result<Ended, Error> {
        let (counted, stop) = (self.counted, self.stop);
        let mut notifier = pin!(self.commit_notifier.run(counted.pool));
        let mut changes = pin!(counted.changes(self.recount));
        let (mut failed, mut is_requested) = (None, false);
        loop {
            select! {
                ended = self.tasks.join_next() => {
                    let error = match ended {
                        None => break,
                        Some(Ok(ended)) => error_of(ended),
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
        counted.ended(failed, is_requested).await
    }
}
