//! What a source and its receipts share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    NatsConfig, NatsSubscription,
    held::Held,
    link::Link,
    prefetched::Prefetched,
    pull::Pull,
    receipt::NatsReceipt,
    terms::{self, LimitWarning},
};
use crate::{
    Closed, TransportError,
    brokers::withheld::{Withheld, Withhold},
};

/// So many messages are on their way back to the server at once.
const RETURNS: usize = 64;

/// How long the server may take for all of them. Below what a consumer waits for a close: messages
/// at their last delivery are kept after it.
const RETURNED_WITHIN: Duration = Duration::from_secs(3);

pub(super) struct Session {
    pub(super) link: Link,
    pub(super) subscription: Arc<NatsSubscription>,
    pub(super) held: Arc<Held>,
    pub(super) prefetched: Prefetched,
    pub(super) withheld: Withheld<NatsReceipt>,
}

/// The task that fetches ahead.
pub(super) struct Pulling {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Session {
    pub(super) async fn connect(config: &NatsConfig, subscription: &Arc<NatsSubscription>) -> Result<Arc<Self>, TransportError> {
        let link = Link::connect(config).await?;
        Ok(Arc::new(Self {
            held: Held::start(link.context.client()),
            link,
            subscription: Arc::clone(subscription),
            prefetched: Prefetched::default(),
            withheld: Withheld::default(),
        }))
    }

    /// How many messages to ask for, none as long as half of the room is taken. A withheld message
    /// keeps its place.
    pub(super) fn room(&self) -> usize {
        let prefetch = usize::from(self.subscription.prefetch.max(1));
        let places = prefetch.saturating_sub(self.withheld.len());
        let waiting = self.prefetched.len();
        if waiting <= places / 2 {
            places.saturating_sub(waiting)
        } else {
            0
        }
    }

    /// Returns what was not delivered. The subscription is ended first: the server would send the
    /// messages to it again.
    pub(super) fn end(self: Arc<Self>, pulling: Option<Pulling>) -> impl Future<Output = Closed> + Send + 'static {
        // At once, because the receipts hold what they are withheld in.
        let withheld = self.withheld.close();
        async move {
            let returned = AtomicU64::new(0);
            let mut last = Vec::new();
            let ending = async {
                if let Some(pulling) = pulling {
                    pulling.stop().await;
                }
                let mut undelivered: Vec<NatsReceipt> = withheld.into_iter().map(|(_, receipt)| receipt).collect();
                undelivered.extend(self.prefetched.drain());
                undelivered.retain(Withhold::is_usable);
                last.extend(undelivered.extract_if(.., |receipt| receipt.is_last()));
                let returns = stream::iter(undelivered).map(async |receipt| {
                    if receipt.give_back().await {
                        returned.fetch_add(1, Ordering::Relaxed);
                    }
                });
                returns.buffer_unordered(RETURNS).collect::<()>().await;
            };
            if timeout(RETURNED_WITHIN, ending).await.is_err() {
                tracing::debug!("the server does not take messages back: they come again by themselves");
            }
            // Their receipts hold this session.
            drop(self.prefetched.drain());
            let last = last.into_iter().map(NatsReceipt::into_delivery).collect();
            Closed::returned(returned.into_inner()).near_limit(last)
        }
    }
}

impl Pulling {
    pub(super) async fn start(session: &Arc<Session>, limit_warning: &mut LimitWarning) -> Result<Self, TransportError> {
        let (consumer, terms) = terms::consumer(&session.link.context, &session.subscription).await?;
        limit_warning.give_once(&terms, &session.subscription);
        let stop = CancellationToken::new();
        let pull = Pull {
            consumer,
            terms,
            session: Arc::clone(session),
            stop: stop.clone(),
        };
        Ok(Self {
            stop,
            task: tokio::spawn(pull.run()),
        })
    }

    async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::debug!(%error, "the task that fetched messages ahead has not ended by itself");
        }
    }
}
