//! The inbox of a destination as a source of messages.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::{runtime::Handle, select, task::JoinHandle};

use super::{Received, desk::Desk, receipt::Ticket, shelf::Shelf};
use crate::{
    Closed, Delivery, Destination, Error, Source, TransportError,
    policy::{LONGEST_LEASE, SHORTEST_LEASE},
};

/// What `idem_next` gives at a time.
const LARGEST_BATCH: i32 = 10_000;

/// How many bytes are fetched ahead unless a setting says otherwise.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The messages that were received for a destination, for a [`Consumer`](crate::Consumer).
///
/// ```no_run
/// # async fn service(pool: deadpool_postgres::Pool) -> Result<(), idem_client::Error> {
/// use idem_client::{Consumer, Destination, Message, Tx, durable::DurableSource, terminated};
///
/// let to = Destination::new("orders.bill")?;
/// Consumer::new(pool.clone(), DurableSource::new(pool, to))
///     .handle("orders.bill", |tx: Tx, message: Message| async move {
///         let order: i64 = message.json()?;
///         tx.execute("INSERT INTO bill VALUES ($1)", &[&order]).await?;
///         Ok(vec![])
///     })
///     .run(terminated())
///     .await?;
/// # Ok(()) }
/// ```
///
/// Any number of processes share a destination. Messages of one key come one after the other,
/// whoever handles them; the consumer's own [`ordered_by_key`](crate::Consumer::ordered_by_key) is
/// not needed. Handled under the name of its destination, a message is ended by its claim, in the
/// handler's transaction; where that claims something else or nothing, when it is acknowledged.
///
/// Failures are counted in the database, which also says how long a message rests and when it is
/// dead: see [`RetryPolicy`](super::RetryPolicy). The consumer's `max_deliveries` and `back_off` do
/// not count here. Whoever dies with a message in hand has failed too: it comes again when its
/// lease has run out, and is handled alone then. Leases are renewed while messages wait and are
/// handled.
///
/// It takes up to two connections of the pool besides those of the handlers.
pub struct DurableSource {
    shelf: Arc<Shelf>,
    /// Whether the leases are being kept.
    is_kept: bool,
    fetching: Option<JoinHandle<Result<(), Error>>>,
}

impl DurableSource {
    /// What was received for this destination.
    pub fn new(pool: Pool, destination: Destination) -> Self {
        Self::over(Desk {
            pool,
            destination,
            batch: 20,
            max_bytes: MAX_BYTES,
            lease: Duration::from_secs(30),
            look_every: None,
            is_unrouted: false,
        })
    }

    /// The same for a destination that has messages seldom: it looks now and then, and holds no
    /// connection in between.
    pub(crate) fn looking(
        pool: Pool,
        destination: Destination,
        every: Duration,
        is_unrouted: bool,
    ) -> Self {
        Self::over(Desk {
            pool,
            destination,
            batch: 2,
            max_bytes: MAX_BYTES,
            lease: Duration::from_secs(30),
            look_every: Some(every),
            is_unrouted,
        })
    }

    fn over(desk: Desk) -> Self {
        Self {
            shelf: Arc::new(Shelf::new(desk)),
            is_kept: false,
            fetching: None,
        }
    }

    fn with(self, change: impl FnOnce(&mut Desk)) -> Self {
        let old = &self.shelf.desk;
        let mut desk = Desk {
            pool: old.pool.clone(),
            destination: old.destination.clone(),
            ..*old
        };
        change(&mut desk);
        Self::over(desk)
    }

    /// How many messages are fetched at a time, 1 to 10,000; 20 unless given. The next ones are
    /// fetched when half of them are left. What nobody here begins to handle within a sixth of its
    /// lease goes back, for others.
    #[must_use]
    pub fn batch(self, messages: u32) -> Self {
        self.with(|desk| {
            desk.batch = i32::try_from(messages)
                .unwrap_or(i32::MAX)
                .clamp(1, LARGEST_BATCH)
        })
    }

    /// How many bytes of payloads and headers are fetched ahead, at least one message; 16 MiB
    /// unless given, and at most 1 GB in one fetch.
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> Self {
        self.with(|desk| desk.max_bytes = bytes)
    }

    /// How long a message stays this process's without a sign of life, 100 milliseconds to one day;
    /// 30 s unless given.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|desk| desk.lease = lease.clamp(SHORTEST_LEASE, LONGEST_LEASE))
    }

    fn deliver(&self, received: &Received) -> Result<Delivery, TransportError> {
        let desk = &self.shelf.desk;
        let message = if desk.is_unrouted {
            received.unrouted_message(&desk.destination)
        } else {
            received.message(&desk.destination)
        };
        let stored = message
            .stored()
            .cloned()
            .ok_or("a message of the inbox without its lease")?;
        let shelf = Arc::clone(&self.shelf);
        Ok(Delivery::new(message, Ticket { shelf, stored }))
    }

    /// Whoever fetches, and whoever keeps the leases, does so beside those who handle.
    fn start(&mut self) {
        if !std::mem::replace(&mut self.is_kept, true) {
            tokio::spawn(Arc::clone(&self.shelf).keep());
        }
        if self.fetching.is_none() {
            self.fetching = Some(tokio::spawn(Arc::clone(&self.shelf).fill()));
        }
    }
}

impl Source for DurableSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        while !self.shelf.is_closed.is_cancelled() {
            self.start();
            let received = self.shelf.take();
            if self.shelf.wants() {
                self.shelf.wanted.notify_one();
            }
            if let Some(received) = received {
                return self.deliver(&received).map(Some);
            }
            let Some(fetching) = &mut self.fetching else {
                continue;
            };
            select! {
                () = self.shelf.arrived.notified() => {}
                ended = fetching => {
                    self.fetching = None;
                    ended??;
                }
            }
        }
        Ok(None)
    }

    fn inbox(&self) -> Option<&Destination> {
        Some(&self.shelf.desk.destination)
    }

    async fn close(&mut self) -> Closed {
        self.shelf.is_closed.cancel();
        if let Some(fetching) = self.fetching.take() {
            // What it has still fetched it gives back.
            let _ = fetching.await;
        }
        self.shelf.later.close();
        self.shelf.later.wait().await;
        Closed::returned(self.shelf.clear(Duration::ZERO).await)
    }
}

impl Drop for DurableSource {
    fn drop(&mut self) {
        self.shelf.is_closed.cancel();
        if let Ok(runtime) = Handle::try_current() {
            let shelf = Arc::clone(&self.shelf);
            runtime.spawn(async move {
                shelf.clear(Duration::ZERO).await;
            });
        }
    }
}
