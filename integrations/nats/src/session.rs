//! The session: what a source holds until it ends.

use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use idem_runtime::{
    consumer::Closed,
    transport::{
        TransportError,
        withheld::{Withheld, Withhold},
    },
};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    NatsConfig, NatsSubscription,
    held::Held,
    link::Link,
    prefetched::Prefetched,
    receipt::{NatsReceipt, Unsettled},
};

/// The largest number of messages that are returned to the server at the same time.
const RETURNS: usize = 64;

/// The longest time that a source takes to end. The consumer allows more time for this, so it
/// receives the result, and can keep the messages that were at their last delivery.
const RETURNED_WITHIN: Duration = Duration::from_secs(3);

pub(super) struct Session {
    pub(super) unsettled: Arc<Unsettled>,
    pub(super) prefetched: Prefetched,
    /// Ensures that the warning about a limit of deliveries is logged once.
    pub(super) limit_warning: Once,
}

impl Session {
    pub(super) async fn connect(
        config: &NatsConfig,
        subscription: &Arc<NatsSubscription>,
    ) -> Result<Arc<Self>, TransportError> {
        let link = Link::connect(config).await?;
        let unsettled = Unsettled {
            held: Held::start(link.context.client()),
            link,
            subscription: Arc::clone(subscription),
            withheld: Withheld::default(),
            runtime: Handle::current(),
        };
        Ok(Arc::new(Self {
            unsettled: Arc::new(unsettled),
            prefetched: Prefetched::default(),
            limit_warning: Once::new(),
        }))
    }

    /// Returns how many messages to request: the number of free places, or 0 while more than half
    /// of the places are taken. A withheld message takes one of the `prefetch` places.
    pub(super) fn room(&self) -> usize {
        let prefetch = usize::from(self.unsettled.subscription.prefetch.max(1));
        let places = prefetch.saturating_sub(self.unsettled.withheld.count());
        let waiting = self.prefetched.len();
        if waiting <= places / 2 {
            places.saturating_sub(waiting)
        } else {
            0
        }
    }

    /// Ends the session and returns the undelivered messages to the server. Messages at their last
    /// delivery are not returned to the server but to the caller, in the result.
    ///
    /// `stopped` completes when nothing more is fetched.
    pub(super) fn end(
        self: Arc<Self>,
        stopped: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = Closed> + Send + 'static {
        // Empty the set now, because the future may be dropped without a poll. Each withheld
        // receipt refers to the set that contains it, so the two would keep each other alive.
        let withheld = self.unsettled.withheld.close();
        let ended = Ended(self);
        async move {
            let deadline = Instant::now() + RETURNED_WITHIN;
            // First stop fetching: the server would send returned messages to the open request.
            let is_stopped = timeout_at(deadline, stopped).await.is_ok();
            let mut undelivered: Vec<NatsReceipt> =
                withheld.into_iter().map(|(_, receipt)| receipt).collect();
            undelivered.extend(ended.0.prefetched.close());
            undelivered.retain(NatsReceipt::is_usable);
            let last = undelivered.extract_if(.., |receipt| receipt.is_last());
            let last = last.map(NatsReceipt::into_delivery).collect();
            let returned = AtomicU64::new(0);
            let returns = stream::iter(undelivered).map(async |receipt| {
                if receipt.give_back().await {
                    returned.fetch_add(1, Ordering::Relaxed);
                }
            });
            let returns = returns.buffer_unordered(RETURNS).collect::<()>();
            if timeout_at(deadline, returns).await.is_err() || !is_stopped {
                tracing::debug!(
                    "the server did not confirm all returned messages in time: it redelivers them \
                     later"
                );
            }
            Closed::returned(returned.into_inner()).near_limit(last)
        }
    }
}

/// The session of a source that has ended. Dropping this returns the prefetched messages.
struct Ended(Arc<Session>);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.prefetched.close());
    }
}
