//! Messages that this consumer rejected and that an operator requeued. They are read from the
//! durable inbox of their destination.

use std::time::Duration;

use deadpool_postgres::Pool;
use futures_util::{
    FutureExt,
    future::{join_all, select_all},
};
use idem_client::Destination;

use super::{Delivery, Source, retrying::RetryingSource};
use crate::{backoff::Backoff, inbox::DurableSource};

/// The interval at which the inboxes are read, and so the longest delay of a requeued message. Each
/// read is one short statement for each destination.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The first and the longest pause of the back-off while the inboxes cannot be read, for example
/// without a grant.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The inboxes of the destinations that this consumer handles.
pub(super) struct Requeued(Vec<RetryingSource<DurableSource>>);

impl Requeued {
    /// Creates the inboxes of these destinations, and the inbox of messages that matched no route.
    pub(super) fn new(
        pool: &Pool,
        destinations: impl IntoIterator<Item = Destination>,
        unrouted: Destination,
    ) -> Self {
        let inbox = |(destination, is_unrouted): (Destination, bool)| {
            let pool = pool.clone();
            RetryingSource::new(
                DurableSource::looking(pool, destination.clone(), LOOK_EVERY, is_unrouted),
                Some(destination),
                Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            )
        };
        let handled = destinations
            .into_iter()
            .map(|destination| (destination, false));
        Self(handled.chain([(unrouted, true)]).map(inbox).collect())
    }

    /// Waits for the next message and retries after failures of the database. Cancel safe.
    pub(super) async fn next(&mut self) -> Delivery {
        // `select_all` prefers the first inbox that has a message, so rotate the inboxes to be
        // fair.
        self.0.rotate_left(1);
        let inboxes = self.0.iter_mut().map(|inbox| {
            inbox
                .next()
                .then(|delivery| async {
                    match delivery {
                        Some(delivery) => delivery,
                        // The inbox is closed.
                        None => std::future::pending().await,
                    }
                })
                .boxed()
        });
        select_all(inboxes).await.0
    }

    /// Closes the inboxes. Returns the number of messages that were returned to them.
    pub(super) async fn close(&mut self) -> u64 {
        let closed = join_all(self.0.iter_mut().map(|inbox| inbox.source.close())).await;
        closed.iter().map(|closed| closed.returned).sum()
    }
}
