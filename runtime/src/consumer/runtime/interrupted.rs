//! Ends the leases of attempts that a stop has interrupted.
//!
//! A transaction of an interrupted handler may still be open, for example behind a pooler. It
//! cannot complete its message after the end of its lease. If it has completed the message and not
//! committed yet, the end of the lease waits for it.

use std::time::Duration;

use futures_util::future::join_all;
use idem_client::ErrorKind;
use tokio::time::{Instant, timeout_at};

use super::state::Runtime;
use crate::{
    Error, Source,
    consumer::queue::QueuedMessage,
    lease::{InterruptedLease, NotedLease, bury_on, give_back_on, reject_on},
};

/// The longest time for the release of leases.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

impl<S: Source> Runtime<S> {
    /// Releases the leases of the attempts that are not counted. A lease that is not released
    /// expires, and its attempt stays counted.
    pub(super) fn give_back_leases(&self, waiting: &[QueuedMessage]) -> impl Future + Send + '_ {
        let until = Instant::now() + RELEASE_LIMIT;
        let leases = waiting
            .iter()
            .filter_map(|queued| queued.message.noted_lease().and_then(NotedLease::take));
        join_all(leases.map(|lease| async move { self.give_back_uncounted(&lease, until).await }))
    }

    /// Releases the lease if its attempt is not counted.
    pub(super) async fn give_back_uncounted(&self, lease: &InterruptedLease, until: Instant) {
        if !lease.is_uncounted {
            return;
        }
        let held = &lease.held;
        match timeout_at(until, give_back_on(held, &self.pool)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, message_id = %held.id(), "a lease is not released");
            }
            Err(_) => tracing::warn!(
                message_id = %held.id(),
                "the lease of an interrupted handler is not released in time"
            ),
        }
    }

    /// Stores a message as a dead letter with the token of its lease, or without it if the lease
    /// has ended meanwhile. Returns false if the message is a dead letter already or was processed.
    pub(super) async fn bury_interrupted(&self, lease: &InterruptedLease) -> Result<bool, Error> {
        let InterruptedLease { held, burial, .. } = lease;
        match bury_on(held, &self.pool, burial).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotClaimed => {
                reject_on(held.id(), held.destination(), &self.pool, burial).await
            }
            Err(error) => Err(error),
        }
    }
}
