//! The thread that runs the Kafka consumer. It fetches messages, commits offsets, and keeps its
//! membership in the group while handlers are busy.
//!
//! This is a thread and not a task, because librdkafka blocks while it commits the offsets of
//! revoked partitions and while it leaves the group.

use std::{
    iter,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use idem_runtime::{Message, transport::TransportError};
use rdkafka::{
    ClientContext, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::BorrowedMessage,
};
use tokio::sync::Notify;

use super::{
    KafkaConfig, KafkaSubscription,
    config::not_created,
    incoming::{self, Record},
    ledger::{Ledger, Place, Ticket},
};

/// The longest time that a poll waits for a message. A poll delays the end of the source by at most
/// this time.
const POLL: Duration = Duration::from_millis(50);

/// The interval between two commits while messages are unsettled.
const COMMIT_EVERY: Duration = Duration::from_secs(1);

/// The longest time without a poll while too many messages are unsettled. After this time the
/// partitions are paused and the polls continue, because a longer time without a poll would end the
/// membership in the group. During a shorter wait the partitions are not paused, because a pause
/// discards prefetched messages.
const FULL_BEFORE_PAUSE: Duration = Duration::from_secs(1);

/// The properties whose values differ from librdkafka's defaults. The user's configuration cannot
/// change the two properties of automatic commits, but it can change the others.
const DEFAULTS: [(&str, &str); 4] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // A new group begins with the oldest messages, so that it misses none.
    ("auto.offset.reset", "earliest"),
    // The limit for the messages that the client fetches ahead. It is lower than the default of 64
    // MB, because these messages are in memory in addition to the unsettled messages.
    ("queued.max.messages.kbytes", "16384"),
];

/// A fetched record for the source.
pub(super) struct Fetched {
    pub(super) ticket: Ticket,
    pub(super) message: Message,
    pub(super) record: Record,
}

/// The state that the thread, the source and the receipts share.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    changed: Condvar,
    /// Wakes the source.
    pub(super) arrived: Notify,
}

#[derive(Default)]
struct State {
    ledger: Ledger<Fetched>,
    /// The number of receipts that exist.
    receipts: usize,
    /// The last error that the source has not read. Errors repeat, so only one is kept.
    error: Option<TransportError>,
    /// Whether the source has read an error and no message since. A message then comes first, so
    /// that an error that repeats does not keep messages back.
    has_read_error: bool,
    /// Whether the source is stopped. Then the thread fetches no more messages, and ends after the
    /// last receipt.
    is_stopped: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_current(&self, ticket: &Ticket) -> bool {
        self.state().ledger.is_current(ticket)
    }

    /// Returns a message that is due, and counts a receipt for it.
    pub(super) fn hand_out(&self) -> Result<Option<Fetched>, TransportError> {
        let mut state = self.state();
        let fetched = match state.error.is_some() && !state.has_read_error {
            true => None,
            false => state.ledger.take_due(Instant::now()),
        };
        state.has_read_error = false;
        if fetched.is_none()
            && let Some(error) = state.error.take()
        {
            state.has_read_error = true;
            return Err(error);
        }
        state.receipts += usize::from(fetched.is_some());
        Ok(fetched)
    }

    /// Returns the time when the next message is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.state().ledger.next_due()
    }

    /// Removes a dropped receipt from the count.
    pub(super) fn hand_in(&self) {
        self.state().receipts -= 1;
        self.changed.notify_all();
    }

    pub(super) fn settle(&self, ticket: &Ticket) {
        self.state().ledger.settle(ticket);
        self.changed.notify_all();
    }

    /// Schedules the redelivery of a message after this time.
    pub(super) fn come_again(&self, mut fetched: Fetched, after: Duration) {
        // The clock cannot represent this time, so the message is redelivered only after a restart.
        let Some(due) = Instant::now().checked_add(after) else {
            return;
        };
        // The first delivery by this source has no count.
        let deliveries = fetched.message.deliveries().unwrap_or(1);
        fetched.message = fetched
            .message
            .with_deliveries(deliveries.saturating_add(1));
        let ticket = fetched.ticket.clone();
        self.state().ledger.wait(ticket, fetched, due);
        self.arrived.notify_one();
    }

    /// Stops the source. Returns the number of messages that it has not delivered.
    pub(super) fn stop(&self) -> u64 {
        let mut state = self.state();
        state.is_stopped = true;
        let now = Instant::now();
        let returned = iter::from_fn(|| state.ledger.take_due(now)).count();
        self.changed.notify_all();
        returned as u64
    }

    fn is_over(&self) -> bool {
        let state = self.state();
        state.is_stopped && state.receipts == 0
    }
}

/// The loop of the thread, which fetches messages for one source.
pub(super) struct Driver {
    consumer: BaseConsumer<Member>,
    shared: Arc<Shared>,
    max_unsettled: usize,
    max_unsettled_bytes: usize,
    is_paused: bool,
    full_since: Option<Instant>,
    next_commit: Instant,
    /// Whether the last poll returned no message.
    is_idle: bool,
}

impl Driver {
    pub(super) fn new(
        config: &KafkaConfig,
        subscription: &KafkaSubscription,
        shared: Arc<Shared>,
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
            max_unsettled: subscription.max_unsettled,
            max_unsettled_bytes: subscription.max_unsettled_bytes,
            is_paused: false,
            full_since: None,
            next_commit: Instant::now() + COMMIT_EVERY,
            is_idle: false,
        })
    }

    /// Runs until the source is stopped and all receipts are dropped. Dropping the consumer revokes
    /// its partitions, which commits their offsets.
    pub(super) fn run(mut self) {
        while !self.shared.is_over() {
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

    /// Records a message as unsettled and as due at the source.
    fn take(&self, borrowed: &BorrowedMessage<'_>) {
        let mut state = self.shared.state();
        if state.is_stopped {
            // The offset is not recorded, so it is not committed.
            return;
        }
        let (message, record) = incoming::read(borrowed);
        let place = Place {
            topic: borrowed.topic().to_owned(),
            partition: borrowed.partition(),
        };
        let fetched = Fetched {
            ticket: state
                .ledger
                .deliver(place, borrowed.offset(), record.bytes()),
            // Kafka does not count deliveries, so the message gets no count. A count of 1 could be
            // wrong, because an earlier process may have received the message before it crashed.
            message,
            record,
        };
        let ticket = fetched.ticket.clone();
        state.ledger.wait(ticket, fetched, Instant::now());
        drop(state);
        self.shared.arrived.notify_one();
        if self.is_paused {
            // The message is from a partition that was assigned after the pause, so pause again.
            self.set_paused(true);
        }
    }

    /// Commits the offsets of settled messages: at a fixed interval, and at once when no message
    /// arrives and all messages are settled.
    ///
    /// The offsets are stored in the client, and the client commits the stored offsets that the
    /// broker has not confirmed. An asynchronous commit with explicit offsets is not used, because
    /// its failure would not be reported.
    fn commit(&mut self) {
        let now = Instant::now();
        let mut state = self.shared.state();
        let is_time = now >= self.next_commit;
        let is_idle = self.is_idle && state.ledger.unsettled().0 == 0;
        if !is_time && !is_idle {
            return;
        }
        let offsets = state.ledger.unstored();
        if offsets.is_empty() && !is_time {
            return;
        }
        self.next_commit = now + COMMIT_EVERY;
        if !offsets.is_empty() {
            match list(&offsets).and_then(|list| self.consumer.store_offsets(&list)) {
                Ok(()) => state.ledger.stored(&offsets),
                Err(error) => tracing::warn!(%error, "cannot store offsets for the next commit"),
            }
        }
        drop(state);
        // An error only means that there is no offset to commit.
        let _ = self.consumer.commit_consumer_state(CommitMode::Async);
    }

    /// Returns whether the consumer may be polled. While too many messages are unsettled, this
    /// function first waits until a message is settled. After [`FULL_BEFORE_PAUSE`] it pauses the
    /// partitions and then allows polls, so that the consumer stays in the group.
    fn may_poll(&mut self) -> bool {
        let state = self.shared.state();
        let (count, bytes) = state.ledger.unsettled();
        let is_full = count >= self.max_unsettled || bytes >= self.max_unsettled_bytes;
        if !state.is_stopped && !is_full {
            drop(state);
            self.full_since = None;
            if self.is_paused {
                self.is_paused = !self.set_paused(false);
            }
            return true;
        }
        if self.is_paused {
            return true;
        }
        let now = Instant::now();
        let pause_at = *self.full_since.get_or_insert(now) + FULL_BEFORE_PAUSE;
        if now < pause_at {
            // After any change and after the timeout the loop checks everything again.
            let _ = self.shared.changed.wait_timeout(state, pause_at - now);
            return false;
        }
        drop(state);
        self.is_paused = self.set_paused(true);
        true
    }

    /// Pauses or resumes all assigned partitions. Returns whether this succeeded.
    fn set_paused(&self, is_paused: bool) -> bool {
        let done = self.consumer.assignment().and_then(|all| match is_paused {
            true => self.consumer.pause(&all),
            false => self.consumer.resume(&all),
        });
        if let Err(error) = &done {
            let verb = if is_paused { "pause" } else { "resume" };
            tracing::warn!(%error, "cannot {verb} the partitions");
        }
        done.is_ok()
    }

    /// Reports an error to the source. Returns true if the error is fatal, so that the consumer
    /// cannot continue.
    fn report(&self, error: &KafkaError) -> bool {
        let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        match error.rdkafka_error_code() {
            // The client recovers from these errors itself. If all brokers are down, the client
            // reports another error.
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::PartitionEOF,
            ) if !is_fatal => tracing::debug!(%error, "Kafka"),
            _ => {
                self.shared.state().error = Some(error.clone().into());
                self.shared.arrived.notify_one();
            }
        }
        is_fatal
    }
}

/// The callbacks of the consumer. They run in the thread of the consumer, during a poll or while
/// the consumer is dropped.
pub(super) struct Member(Arc<Shared>);

impl ClientContext for Member {}

impl ConsumerContext for Member {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(partitions) = rebalance else {
            return;
        };
        let revoked = places(partitions);
        // This is the last commit before the next owner of the partitions reads the offsets. The
        // next owner receives the messages that are not committed, and the claims find the
        // duplicates.
        let offsets = self.0.state().ledger.committable(&revoked);
        if !offsets.is_empty()
            && let Err(error) =
                list(&offsets).and_then(|list| consumer.commit(&list, CommitMode::Sync))
        {
            tracing::warn!(%error, "cannot commit the offsets of revoked partitions");
        }
        let mut state = self.0.state();
        for place in &revoked {
            state.ledger.revoke(place);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that repeats keeps no message back, although the source pauses after each error and
    /// so finds a new one each time.
    #[test]
    fn message_is_handed_out_after_each_error() {
        let shared = Shared::default();
        let place = Place {
            topic: "t".into(),
            partition: 0,
        };
        for offset in 0..2 {
            let mut state = shared.state();
            let ticket = state.ledger.deliver(place.clone(), offset, 1);
            let record = Record {
                key: None,
                payload: None,
                headers: None,
            };
            let message = Message::new("t", "1");
            let fetched = Fetched {
                ticket: ticket.clone(),
                message,
                record,
            };
            state.ledger.wait(ticket, fetched, Instant::now());
        }
        let mut results = Vec::new();
        for _ in 0..6 {
            shared.state().error = Some("the broker is down".into());
            results.push(shared.hand_out().map(|fetched| fetched.is_some()).ok());
        }
        let (error, message) = (None, Some(true));
        assert_eq!(results, [error, message, error, message, error, error]);
        assert!(matches!(shared.hand_out(), Ok(None)));
    }
}
