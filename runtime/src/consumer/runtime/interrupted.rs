//! Ends the leases of attempts that a stop has interrupted.
//!
//! A transaction of an interrupted handler may still be open, for example behind a pooler. It
//! cannot complete its message after the end of its lease. If it has completed the message and not
//! committed yet, the end of the lease waits for it.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::{state::Runtime, stop::kept_by};
use crate::{
    Message, Source,
    consumer::queue::QueuedMessage,
    lease::{InterruptedLease, LeaseEnd, NotedLease, bury_on, give_back_on},
};

/// The longest time for the release of leases.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

impl<S: Source> Runtime<S> {
    /// Releases the leases of the attempts that have done nothing, without counting them. A lease
    /// that is not released expires, and its attempt stays counted.
    pub(super) fn give_back_leases(&self, waiting: &[QueuedMessage]) -> impl Future + Send + '_ {
        let until = Instant::now() + RELEASE_LIMIT;
        let leases = waiting.iter().filter_map(|queued| {
            let noted = queued.message.noted_lease()?;
            noted.take_if(|lease| matches!(lease.end, LeaseEnd::Release))
        });
        join_all(leases.map(|lease| self.give_back_lease(lease, until)))
    }

    async fn give_back_lease(&self, lease: InterruptedLease, until: Instant) {
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

    /// Stores a message with the token of its lease, if its attempt has failed or may still work:
    /// while the lease is valid, no other function can store the message. Returns the reason of the
    /// dead letter.
    pub(super) async fn bury_interrupted(
        &self,
        message: &Message,
        until: Instant,
    ) -> Option<String> {
        let lease = message.noted_lease().and_then(NotedLease::take)?;
        let LeaseEnd::Expire(burial) = lease.end else {
            return None;
        };
        match kept_by(until, || bury_on(&lease.held, &self.pool, &burial)).await {
            Ok(()) => Some(burial.reason),
            Err(error) => {
                tracing::warn!(
                    %error,
                    message_id = %lease.held.id(),
                    "a message is not stored with the token of its lease"
                );
                None
            }
        }
    }
}
