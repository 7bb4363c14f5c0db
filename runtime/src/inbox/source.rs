//! The inbox of a destination as the source of a consumer.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use idem_client::Destination;
use tokio::{runtime::Handle, select, task::JoinHandle};

use super::{
    client::InboxClient,
    prefetch::{Fetched, Prefetch},
    receipt::InboxReceipt,
};
use crate::{
    Delivery, Error, Source,
    consumer::Closed,
    policy::{LONGEST_LEASE, SHORTEST_LEASE},
    transport::TransportError,
};

/// The largest number of messages that `idem_next` returns at a time.
const LARGEST_BATCH: i32 = 10_000;

/// The default for the number of bytes that are prefetched.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A [`Source`] for a [`Consumer`](crate::Consumer): the messages that were received in the durable
/// inbox of a destination.
///
/// ```no_run
/// # async fn service(pool: deadpool_postgres::Pool) -> Result<(), idem_runtime::Error> {
/// use idem_client::Destination;
/// use idem_runtime::{Consumer, inbox::DurableSource, terminated};
///
/// let to = Destination::new("orders.bill")?;
/// Consumer::new(pool.clone(), DurableSource::new(pool, to))
///     .handle("orders.bill", |tx, message| async move {
///         let order: i64 = message.json()?;
///         tx.execute("INSERT INTO bill VALUES ($1)", &[&order]).await?;
///         Ok(vec![])
///     })
///     .run(terminated())
///     .await?;
/// # Ok(()) }
/// ```
///
/// Any number of processes can share a destination. Messages of one key are handled one after the
/// other across all processes, so the consumer does not need
/// [`ordered_by_key`](crate::Consumer::ordered_by_key). When the handler has the destination of the
/// inbox, the claim deletes the pending row, in the transaction of the handler. When the handler
/// claims another identity or nothing, the acknowledgement deletes it.
///
/// The database counts failures, schedules the retries, and moves messages that failed too often to
/// the dead letters: see `idem_configure_retries`. The consumer's `max_deliveries` and `back_off`
/// do not apply. When a process crashes while it handles a message, the attempt counts as failed:
/// the message is redelivered after its lease has expired, and is then handled alone. The leases of
/// waiting and running messages are renewed.
///
/// The source uses up to two connections of the pool besides the connections of the handlers.
pub struct DurableSource {
    prefetch: Arc<Prefetch>,
    /// Whether the task that renews the leases has been started.
    is_renewing: bool,
    fetching: Option<JoinHandle<Result<(), Error>>>,
}

impl DurableSource {
    /// Creates a source for the inbox of this destination.
    pub fn new(pool: Pool, destination: Destination) -> Self {
        Self::over(InboxClient {
            pool,
            destination,
            batch: 20,
            max_bytes: MAX_BYTES,
            lease: Duration::from_secs(30),
            look_every: None,
            is_unrouted: false,
        })
    }

    /// Creates a source for a destination that rarely has messages. It fetches at the interval
    /// `every` and holds no connection in between.
    pub(crate) fn looking(
        pool: Pool,
        destination: Destination,
        every: Duration,
        is_unrouted: bool,
    ) -> Self {
        Self::new(pool, destination).with(|inbox| {
            inbox.batch = 2;
            inbox.look_every = Some(every);
            inbox.is_unrouted = is_unrouted;
        })
    }

    fn over(inbox: InboxClient) -> Self {
        Self {
            prefetch: Arc::new(Prefetch::new(inbox)),
            is_renewing: false,
            fetching: None,
        }
    }

    fn with(self, change: impl FnOnce(&mut InboxClient)) -> Self {
        let old = &self.prefetch.inbox;
        let mut inbox = InboxClient {
            pool: old.pool.clone(),
            destination: old.destination.clone(),
            ..*old
        };
        change(&mut inbox);
        Self::over(inbox)
    }

    /// Sets the number of messages that are fetched at a time, 1 to 10,000; 20 by default. The next
    /// messages are fetched when half of them are left. A message that waits in the source for a
    /// sixth of its lease is released for other processes.
    #[must_use]
    pub fn batch(self, messages: u32) -> Self {
        self.with(|inbox| {
            inbox.batch = i32::try_from(messages)
                .unwrap_or(i32::MAX)
                .clamp(1, LARGEST_BATCH)
        })
    }

    /// Sets the number of bytes of payloads and headers that are prefetched; 16 MiB by default. At
    /// least one message is fetched, and at most 1 GB at a time.
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> Self {
        self.with(|inbox| inbox.max_bytes = bytes)
    }

    /// Sets the lease: how long a message stays with this process without a renewal, 100
    /// milliseconds to one day; 30 s by default.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|inbox| inbox.lease = lease.clamp(SHORTEST_LEASE, LONGEST_LEASE))
    }

    fn deliver(&self, fetched: Fetched) -> Delivery {
        let receipt = InboxReceipt {
            prefetch: Arc::clone(&self.prefetch),
            stored: fetched.stored,
        };
        Delivery::new(fetched.message, receipt)
    }

    /// Starts the tasks that fetch messages and renew leases, unless they run. They run
    /// concurrently with the handlers.
    fn start(&mut self) {
        if !std::mem::replace(&mut self.is_renewing, true) {
            tokio::spawn(Arc::clone(&self.prefetch).renew());
        }
        if self.fetching.is_none() {
            self.fetching = Some(tokio::spawn(Arc::clone(&self.prefetch).fill()));
        }
    }
}

impl Source for DurableSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        while !self.prefetch.is_closed.is_cancelled() {
            self.start();
            let fetched = self.prefetch.take();
            if self.prefetch.wants() {
                self.prefetch.wanted.notify_one();
            }
            if let Some(fetched) = fetched {
                return Ok(Some(self.deliver(fetched)));
            }
            let Some(fetching) = &mut self.fetching else {
                continue;
            };
            select! {
                () = self.prefetch.arrived.notified() => {}
                ended = fetching => {
                    self.fetching = None;
                    ended??;
                }
            }
        }
        Ok(None)
    }

    fn inbox(&self) -> Option<&Destination> {
        Some(&self.prefetch.inbox.destination)
    }

    async fn close(&mut self) -> Closed {
        self.prefetch.is_closed.cancel();
        if let Some(fetching) = self.fetching.take() {
            // The task may still be fetching. It then releases the messages that it has fetched.
            let _ = fetching.await;
        }
        self.prefetch.later.close();
        self.prefetch.later.wait().await;
        Closed::returned(self.prefetch.clear(Duration::ZERO).await)
    }
}

impl Drop for DurableSource {
    fn drop(&mut self) {
        self.prefetch.is_closed.cancel();
        if let Ok(runtime) = Handle::try_current() {
            let prefetch = Arc::clone(&self.prefetch);
            runtime.spawn(async move {
                prefetch.clear(Duration::ZERO).await;
            });
        }
    }
}
