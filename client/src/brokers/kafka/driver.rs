//! The thread that holds the consumer: it fetches, commits, and stays in the group while everybody
//! else is busy.
//!
//! A thread, because librdkafka blocks: a commit while partitions are revoked, and leaving the
//! group.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::BorrowedMessage,
};
use tokio::sync::mpsc;

use super::{
    KafkaConfig, KafkaSubscription,
    config::not_created,
    incoming::{self, Record},
    ledger::{Ledger, Place, Ticket},
};
use crate::{Message, TransportError};

/// How long a poll waits for a message: whoever wants one delivered again, or the source to stop,
/// waits no longer.
const POLL: Duration = Duration::from_millis(50);

/// Commits go out this often while messages are under way.
const COMMIT_EVERY: Duration = Duration::from_secs(1);

/// How long the consumer is not polled while it is full. Pausing throws away what was prefetched,
/// so a short wait does not pause; but the group wants to hear from its members.
const FULL_BEFORE_PAUSE: Duration = Duration::from_secs(1);

/// What differs from librdkafka's own defaults. Automatic commits are not for a configuration to
/// change, the others are.
const DEFAULTS: [(&str, &str); 4] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // A new group misses nothing.
    ("auto.offset.reset", "earliest"),
    // Of each partition, and instead of 64 MB: what is prefetched lies in memory.
    ("queued.max.messages.kbytes", "16384"),
];

/// A record on its way to a handler.
pub(super) struct Fetched {
    pub(super) ticket: Ticket,
    pub(super) message: Message,
    pub(super) record: Arc<Record>,
}

/// What the thread, the source and the receipts know together.
#[derive(Default)]
pub(super) struct Shared {
    desk: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Default)]
struct Desk {
    ledger: Ledger<Fetched>,
    /// Receipts that are out.
    receipts: usize,
    has_unheard_error: bool,
    /// The source is gone: nothing more is fetched, and the last receipt ends it.
    is_stopped: bool,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_current(&self, ticket: &Ticket) -> bool {
        self.desk().ledger.is_current(ticket)
    }

    /// A receipt is made, unless the delivery is no longer ours.
    pub(super) fn hand_out(&self, ticket: &Ticket) -> bool {
        let mut desk = self.desk();
        let is_current = desk.ledger.is_current(ticket);
        desk.receipts += usize::from(is_current);
        is_current
    }

    /// A receipt is gone.
    pub(super) fn hand_in(&self) {
        self.desk().receipts -= 1;
        self.changed.notify_all();
    }

    pub(super) fn settle(&self, ticket: &Ticket) {
        self.desk().ledger.settle(ticket);
        self.changed.notify_all();
    }

    pub(super) fn come_again(&self, fetched: Fetched, after: Duration) {
        // A time beyond what a clock can hold is as good as never; until a restart, that is.
        let Some(due) = Instant::now().checked_add(after) else {
            return;
        };
        self.desk()
            .ledger
            .again(fetched.ticket.clone(), fetched, due);
        self.changed.notify_all();
    }

    pub(super) fn error_was_heard(&self) {
        self.desk().has_unheard_error = false;
    }

    pub(super) fn stop(&self) {
        self.desk().is_stopped = true;
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        let desk = self.desk();
        desk.is_stopped && desk.receipts == 0
    }
}

/// Fetches for one source.
pub(super) struct Driver {
    consumer: BaseConsumer<Member>,
    shared: Arc<Shared>,
    fetched: mpsc::UnboundedSender<Result<Fetched, TransportError>>,
    max_unsettled: usize,
    is_paused: bool,
    full_since: Option<Instant>,
    next_commit: Instant,
    /// The last poll found nothing.
    is_idle: bool,
}

impl Driver {
    pub(super) fn new(
        config: &KafkaConfig,
        subscription: &KafkaSubscription,
        shared: Arc<Shared>,
        fetched: mpsc::UnboundedSender<Result<Fetched, TransportError>>,
    ) -> Result<Self, TransportError> {
        let mut client = config.client(&DEFAULTS)?;
        client.set("group.id", &subscription.group);
        let member = Member(Arc::clone(&shared));
        let consumer: BaseConsumer<Member> =
            client.create_with_context(member).map_err(not_created)?;
        let topics: Vec<&str> = subscription.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics)?;
        Ok(Self {
            consumer,
            shared,
            fetched,
            max_unsettled: subscription.max_unsettled,
            is_paused: false,
            full_since: None,
            next_commit: Instant::now() + COMMIT_EVERY,
            is_idle: false,
        })
    }

    /// Until the source and all receipts are gone. Dropping the consumer revokes its partitions,
    /// which commits.
    pub(super) fn run(mut self) {
        while !self.shared.is_over() {
            self.deliver_again();
            self.commit();
            if !self.may_poll() {
                continue;
            }
            let polled = self.consumer.poll(POLL);
            self.is_idle = polled.is_none();
            match polled {
                Some(Ok(message)) => self.take(&message),
                Some(Err(error)) if self.report(&error) => return,
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Hands a message on, and notes that it waits to be settled.
    fn take(&self, borrowed: &BorrowedMessage<'_>) {
        let mut desk = self.shared.desk();
        if desk.is_stopped {
            // Not noted, so not committed either.
            return;
        }
        let (message, record) = incoming::read(borrowed);
        let Some(coordinates) = message.coordinates() else {
            return;
        };
        let place = Place {
            topic: coordinates.topic.clone(),
            partition: coordinates.partition,
        };
        let fetched = Fetched {
            ticket: desk.ledger.deliver(place, coordinates.offset),
            message: message.with_deliveries(1),
            record: Arc::new(record),
        };
        drop(desk);
        self.hand_on(Ok(fetched));
        if self.is_paused {
            // Of a partition that was assigned in the meantime.
            self.pause();
        }
    }

    fn deliver_again(&self) {
        let now = Instant::now();
        let take = || self.shared.desk().ledger.take_due(now);
        while let Some((_, mut fetched)) = take() {
            let deliveries = fetched.message.deliveries().unwrap_or_default();
            fetched.message = fetched
                .message
                .with_deliveries(deliveries.saturating_add(1));
            self.hand_on(Ok(fetched));
        }
    }

    /// A source that is gone hears nothing.
    fn hand_on(&self, fetched: Result<Fetched, TransportError>) {
        let _ = self.fetched.send(fetched);
    }

    /// Commits what is settled: now and then, and at once when nothing comes and nothing is under
    /// way.
    ///
    /// The client is told the offsets, and commits those that the broker has not taken yet. Were
    /// they given with the commit, nobody would hear that it failed.
    fn commit(&mut self) {
        let now = Instant::now();
        let mut desk = self.shared.desk();
        let is_time = now >= self.next_commit;
        let is_idle = self.is_idle && desk.ledger.unsettled() == 0;
        if !is_time && !is_idle {
            return;
        }
        let offsets = desk.ledger.unstored();
        if offsets.is_empty() && !is_time {
            return;
        }
        self.next_commit = now + COMMIT_EVERY;
        if !offsets.is_empty() {
            match list(&offsets).and_then(|list| self.consumer.store_offsets(&list)) {
                Ok(()) => desk.ledger.stored(&offsets),
                Err(error) => tracing::warn!(%error, "offsets were not stored"),
            }
        }
        drop(desk);
        // An error is that there is nothing to commit.
        let _ = self.consumer.commit_consumer_state(CommitMode::Async);
    }

    /// Holds back while too many are unsettled: first by waiting for one to be settled, then by
    /// pausing the partitions, which are polled nevertheless so that the group goes on.
    fn may_poll(&mut self) -> bool {
        let desk = self.shared.desk();
        if !desk.is_stopped && desk.ledger.unsettled() < self.max_unsettled {
            drop(desk);
            self.full_since = None;
            if self.is_paused {
                self.is_paused = !self.resume();
            }
            return true;
        }
        if self.is_paused {
            return true;
        }
        let now = Instant::now();
        let pause_at = *self.full_since.get_or_insert(now) + FULL_BEFORE_PAUSE;
        if now < pause_at {
            let until = desk
                .ledger
                .next_due()
                .map_or(pause_at, |due| due.min(pause_at));
            // Any change, or none, goes once more around the loop.
            drop(
                self.shared
                    .changed
                    .wait_timeout(desk, until.saturating_duration_since(now)),
            );
            return false;
        }
        drop(desk);
        self.is_paused = self.pause();
        true
    }

    fn pause(&self) -> bool {
        self.on_assignment("pause", |consumer, all| consumer.pause(all))
    }

    fn resume(&self) -> bool {
        self.on_assignment("resume", |consumer, all| consumer.resume(all))
    }

    fn on_assignment(
        &self,
        verb: &str,
        call: impl FnOnce(&BaseConsumer<Member>, &TopicPartitionList) -> KafkaResult<()>,
    ) -> bool {
        let done = self
            .consumer
            .assignment()
            .and_then(|all| call(&self.consumer, &all));
        if let Err(error) = &done {
            tracing::warn!(%error, "could not {verb} the partitions");
        }
        done.is_ok()
    }

    /// Tells the source of an error; `true` when it was the last word of this consumer.
    fn report(&self, error: &KafkaError) -> bool {
        let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        match error.rdkafka_error_code() {
            // The client mends these itself, and says so when there is no broker left.
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::PartitionEOF,
            ) if !is_fatal => tracing::debug!(%error, "Kafka"),
            _ => {
                // One at a time: nobody may be listening, and errors repeat themselves.
                let mut desk = self.shared.desk();
                let is_news = is_fatal || !desk.has_unheard_error;
                desk.has_unheard_error = true;
                drop(desk);
                if is_news {
                    self.hand_on(Err(error.clone().into()));
                }
            }
        }
        is_fatal
    }
}

/// The consumer's callbacks. They run in its thread, inside of a poll, or of its drop.
pub(super) struct Member(Arc<Shared>);

impl ClientContext for Member {}

impl ConsumerContext for Member {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(partitions) = rebalance else {
            return;
        };
        let revoked = places(partitions);
        // The last word before the next owner reads where to begin. What is not committed comes to
        // it again, and the claims find the duplicates.
        let offsets = self.0.desk().ledger.committable(&revoked);
        if !offsets.is_empty()
            && let Err(error) =
                list(&offsets).and_then(|list| consumer.commit(&list, CommitMode::Sync))
        {
            tracing::warn!(%error, "the offsets of revoked partitions were not committed");
        }
        let mut desk = self.0.desk();
        for place in &revoked {
            desk.ledger.revoke(place);
        }
    }
}

fn list(offsets: &[(Place, i64)]) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (place, offset) in offsets {
        list.add_partition_offset(&place.topic, place.partition, Offset::Offset(*offset))?;
    }
    Ok(list)
}

fn places(list: &TopicPartitionList) -> Vec<Place> {
    let places = list.elements().into_iter().map(|element| Place {
        topic: element.topic().to_owned(),
        partition: element.partition(),
    });
    places.collect()
}
