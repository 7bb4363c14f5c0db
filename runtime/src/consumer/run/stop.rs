//! Stops a consumer: waits for the workers, then releases or keeps every message that is left.
//!
//! Nothing more is fetched. Running handlers and settlements have the grace period to finish. Then
//! five steps follow, each of at most 5 s:
//!
//! 1. Handlers are dropped, which rolls back. Messages with a lease of `idem_acquire`, and messages
//!    that their broker may delete, wait for step 3. The others are returned to their source. A
//!    handler that blocks its thread cannot be dropped: the stop waits for it without a limit.
//! 2. The connections of dropped handlers are closed.
//! 3. The leases of counted handlers are released, so their attempts are not counted. Then all
//!    messages that the consumer still holds are returned or kept.
//! 4. The source is closed, together with the inboxes of the requeued dead letters.
//! 5. Messages near the delivery limit, which the source hands over at its close, are kept.
//!
//! The lease of a leased handler that was dropped expires, and its attempt stays counted, because a
//! thread or task of the handler may still run. A message near its delivery limit is rejected, so
//! that its broker or the database keeps it. If nothing can keep it in time, an error is logged,
//! and the message stays unacknowledged.

use std::time::Duration;

use futures_util::future::{TryFutureExt as _, join_all};
use idem_client::{Destination, ErrorKind};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::{
    Runtime, STOP_STEP_LIMIT, Workers,
    settle::{in_time, letter_failed_by_environment},
};
use crate::{
    Delivery, Error, Message, Receipt, Settlement, Source,
    connection::closed,
    consumer::{
        last_delivery::{KeptBy, keep_somewhere},
        queue::QueuedMessage,
        rejections::KeptAs,
        summary::DeliveryOutcome,
    },
    error::causes,
    lease::{InterruptedLease, NotedLease, give_back_on},
    panics::unwinding,
    settlement::HELD_ELSEWHERE_PAUSE,
    transport::TransportError,
};

/// The longest time for which a step of a shutdown tries to keep messages. It is shorter than
/// [`STOP_STEP_LIMIT`], so that the step can still log every message that is not kept.
const KEEP_LIMIT: Duration = Duration::from_millis(4_500);

/// The longest time for the release of leases.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// The time for the release of a lease after the attempts to keep its message. It is shorter than
/// the difference of [`STOP_STEP_LIMIT`] and [`KEEP_LIMIT`].
const LATE_RELEASE: Duration = Duration::from_millis(300);

impl<S: Source> Runtime<S> {
    /// Lets the workers finish their messages within the grace period. Then releases the rest. Five
    /// steps follow the grace period, each of at most [`STOP_STEP_LIMIT`].
    pub(super) async fn drain(&self, workers: &mut Workers) {
        self.stop.cancel();
        let grace = self.settings.grace;
        if timeout(grace, workers.ended()).await.is_err() {
            tracing::warn!(
                ?grace,
                "the grace period ended: running handlers are rolled back, \
                 and their messages are released"
            );
            self.cut.cancel();
            if timeout(STOP_STEP_LIMIT, workers.ended()).await.is_err() {
                self.count_unsettled(self.held_count().saturating_sub(self.queue.len()));
                // A handler that blocks its thread can still commit. `abort` waits for its end, so
                // that no later message of its ordering key is released before that.
                workers.abort().await;
            }
        }
        if timeout(STOP_STEP_LIMIT, closed()).await.is_err() {
            tracing::warn!("the database may still execute statements of dropped handlers");
        }
        // Release the waiting messages only now: another consumer must not handle a message while
        // an earlier message of its ordering key is still being processed.
        let until = Instant::now() + KEEP_LIMIT;
        if timeout(STOP_STEP_LIMIT, self.release_waiting(until))
            .await
            .is_err()
        {
            tracing::warn!("the broker did not confirm the release of waiting messages in time");
        }
        let Ok(near_limit) = timeout(STOP_STEP_LIMIT, self.close()).await else {
            tracing::warn!("the source did not close in time");
            return;
        };
        let messages = near_limit.len();
        let until = Instant::now() + KEEP_LIMIT;
        let near_limit = near_limit.into_iter().map(Delivery::into_parts);
        if timeout(
            STOP_STEP_LIMIT,
            self.keep_last_deliveries(near_limit, until),
        )
        .await
        .is_err()
        {
            tracing::warn!(
                messages,
                within = ?STOP_STEP_LIMIT,
                "some messages that their broker may not redeliver are not kept"
            );
        }
    }

    async fn release_waiting(&self, until: Instant) {
        let waiting = self.queue.drain();
        let (last_deliveries, rest): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(QueuedMessage::must_be_kept_at_stop);
        self.give_back_leases(&rest).await;
        let given_back = async {
            // Release them one after the other, so that the broker can redeliver them in this
            // order.
            let mut rest = rest.into_iter();
            while let Some(queued) = rest.next() {
                if timeout_at(until, self.release_at_stop(queued))
                    .await
                    .is_err()
                {
                    return self.count_unsettled(1 + rest.len());
                }
            }
        };
        let last_deliveries = last_deliveries
            .into_iter()
            .map(|queued| (queued.message, queued.receipt));
        tokio::join!(
            given_back,
            self.keep_last_deliveries(last_deliveries, until)
        );
    }

    /// Closes the source, which returns its prefetched messages. This is called after all workers
    /// have ended. Returns the messages near their delivery limit, which the source did not return.
    async fn close(&self) -> Vec<Delivery> {
        let closed = self.intake.lock().await.close().await;
        self.counters.returned(closed.returned);
        closed.near_limit
    }

    /// Keeps several messages that their broker may not redeliver, all concurrently. While another
    /// transaction holds the claim of a message, storing the message is retried until `until`.
    async fn keep_last_deliveries(
        &self,
        deliveries: impl Iterator<Item = (Message, Box<dyn Receipt>)>,
        until: Instant,
    ) {
        join_all(
            deliveries.map(|(message, receipt)| self.keep_last_delivery(message, receipt, until)),
        )
        .await;
    }

    /// Keeps a message that its broker may not redeliver while the consumer stops. The message is
    /// kept where its broker keeps rejected messages, or in the database. When this fails, the
    /// receipt is dropped, and the source may hand over the message once more at its close. A lease
    /// that the message has is ended or released, unless its attempt counts.
    async fn keep_last_delivery(
        &self,
        message: Message,
        receipt: Box<dyn Receipt>,
        until: Instant,
    ) {
        const REASON: &str = "the consumer stopped before it handled this message, \
             and its broker may not redeliver it";
        let interrupted = message.noted_lease().and_then(NotedLease::take);
        let interrupted = interrupted.as_ref();
        let reason = interrupted.map_or(REASON, |lease| &lease.burial.reason);
        let (message, kept_as) = self.routed(message).await;
        let database = self.keep_last_letter(&message, kept_as, reason, interrupted, until);
        let keeper = match receipt.keeps_rejected() {
            true => {
                self.reject_or_store(&message, receipt, reason, database, until)
                    .await
            }
            false => self.store(&message, receipt, database, until).await,
        };
        if let Some(lease) = interrupted
            && !matches!(keeper, Ok(KeptBy::Database { .. }))
        {
            // The broker has the message, or nothing has: an attempt that has done nothing must not
            // count. `until` may have passed.
            let until = until.max(Instant::now() + LATE_RELEASE);
            self.give_back_uncounted(lease, until).await;
        }
        match keeper {
            Ok(KeptBy::Broker | KeptBy::Database { is_new: true }) => {
                let rejected = Settlement::reject(reason);
                self.record(&message, &rejected, DeliveryOutcome::Rejected);
            }
            // The message was processed, or its source has handed it over a second time.
            Ok(KeptBy::Database { is_new: false }) => {
                self.counters.count(DeliveryOutcome::Duplicate);
            }
            Err(error) => tracing::error!(
                error = causes(&error),
                destination = message.given_destination().map(Destination::as_str),
                message_id = message.message_id(),
                "a message that its broker may not redeliver is not kept"
            ),
        }
    }

    /// Rejects a message whose broker keeps rejected messages. Stores it as a dead letter if the
    /// broker does not confirm this.
    async fn reject_or_store(
        &self,
        message: &Message,
        receipt: Box<dyn Receipt>,
        reason: &str,
        database: impl Future<Output = Result<bool, Error>>,
        until: Instant,
    ) -> Result<KeptBy, Error> {
        let message_id = message.message_id();
        let broker = settled_by(until, receipt, Settlement::reject(reason)).inspect_err(|error| {
            tracing::warn!(
                error = causes(&**error),
                message_id,
                "the broker did not confirm that it keeps a rejected message"
            );
        });
        let keeper = keep_somewhere(broker, database, KEEP_LIMIT / 2).await;
        if !matches!(keeper, Ok(KeptBy::Broker)) {
            self.counters.failed_settlements(1);
        }
        if matches!(keeper, Ok(KeptBy::Database { .. })) {
            tracing::warn!(
                message_id,
                "a message is stored as a dead letter, \
                 because its broker did not confirm that it keeps the message"
            );
        }
        keeper
    }

    /// Stores a message as a dead letter, and then acknowledges it.
    async fn store(
        &self,
        message: &Message,
        receipt: Box<dyn Receipt>,
        database: impl Future<Output = Result<bool, Error>>,
        until: Instant,
    ) -> Result<KeptBy, Error> {
        let kept = database.await;
        match &kept {
            Ok(_) => {
                if let Err(error) = settled_by(until, receipt, Settlement::Acknowledge).await {
                    self.not_confirmed(message, &*error);
                }
            }
            Err(_) => self.counters.failed_settlements(1),
        }
        kept.map(|is_new| KeptBy::Database { is_new })
    }

    /// Stores a message as a dead letter, with the token of its lease if it has one.
    ///
    /// Repeats this while the database is unavailable and while another transaction holds the claim
    /// of the message. For example, behind a connection pooler the server can end the transaction
    /// of a dropped handler late.
    async fn keep_last_letter(
        &self,
        message: &Message,
        kept_as: KeptAs,
        reason: &str,
        interrupted: Option<&InterruptedLease>,
        until: Instant,
    ) -> Result<bool, Error> {
        let keep = || async {
            match interrupted {
                Some(lease) => self.bury_interrupted(lease).await,
                None => self.keep_letter(message, kept_as, reason).await,
            }
        };
        let mut last = None;
        while Instant::now() < until {
            match timeout_at(until, keep()).await {
                Ok(Err(error)) if may_soon_be_kept(&error) => last = Some(error),
                Ok(kept) => return kept,
                Err(_) => break,
            }
            sleep_until(until.min(Instant::now() + HELD_ELSEWHERE_PAUSE)).await;
        }
        Err(last.unwrap_or_else(|| {
            Error::Pool("the database did not respond before the consumer ended".into())
        }))
    }

    /// Returns the message with the destination of its route, and the id under which it is kept.
    async fn routed(&self, message: Message) -> (Message, KeptAs) {
        let found = unwinding(async { self.routes.find(&message) }).await;
        let Ok(Some(route)) = found else {
            return (message, KeptAs::Hash);
        };
        (
            message.with_destination(route.destination.clone()),
            KeptAs::Itself,
        )
    }
}

// The leases of interrupted attempts. A transaction of an interrupted handler may still be open,
// for example behind a pooler. It cannot complete its message after the end of its lease. If it has
// completed the message and not committed yet, the end of the lease waits for it.

impl<S: Source> Runtime<S> {
    /// Releases the leases of the attempts that are not counted. A lease that is not released
    /// expires, and its attempt stays counted.
    fn give_back_leases(&self, waiting: &[QueuedMessage]) -> impl Future + Send + '_ {
        let until = Instant::now() + RELEASE_LIMIT;
        let leases = waiting
            .iter()
            .filter_map(|queued| queued.message.noted_lease().and_then(NotedLease::take));
        join_all(leases.map(|lease| async move { self.give_back_uncounted(&lease, until).await }))
    }

    /// Releases the lease if its attempt is not counted.
    async fn give_back_uncounted(&self, lease: &InterruptedLease, until: Instant) {
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
    async fn bury_interrupted(&self, lease: &InterruptedLease) -> Result<bool, Error> {
        let InterruptedLease { held, burial, .. } = lease;
        match burial.bury(held, &self.pool).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotClaimed => {
                let (id, destination) = (held.id(), held.destination());
                burial.bury_unleased(id, destination, &self.pool).await
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns whether a dead letter that was not stored may still be stored before the consumer stops:
/// the database may become available, or the other transaction may release the claim.
fn may_soon_be_kept(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict || letter_failed_by_environment(error)
}

/// Settles a delivery during a shutdown, until `until` at the latest.
async fn settled_by(
    until: Instant,
    receipt: Box<dyn Receipt>,
    settlement: Settlement,
) -> Result<(), TransportError> {
    let settled = in_time(async { receipt.settle(settlement).await });
    timeout_at(until, settled).await.unwrap_or_else(|_| {
        Err("the broker did not confirm the settlement before the consumer ended".into())
    })
}
