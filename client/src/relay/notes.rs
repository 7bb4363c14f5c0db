//! What a partition finds out about the database, the broker and topics. Each finding goes into the
//! status and the metrics, and is logged when it is new.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{debug, info, warn};

use super::{
    OutgoingMessage, PublishError,
    status::Status,
    steps::{is_final, is_lost_conflict},
    troubles::Troubles,
};
use crate::{Error, ErrorKind, error::causes, telemetry};

/// The notes of one partition. All partitions of a process share the status and the troubles.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    pub(super) status: Status,
    relay: Arc<str>,
    partition: i32,
    troubles: Arc<Mutex<Troubles>>,
}

impl Notes {
    /// The notes of a relay that begins to run, as those of its partition 0.
    pub(super) fn new(relay: &str, status: Status) -> Self {
        telemetry::relay_begins(relay);
        Self {
            status,
            relay: relay.into(),
            partition: 0,
            troubles: Arc::default(),
        }
    }

    pub(super) fn of_partition(&self, partition: i32) -> Self {
        let shared = self.clone();
        Self {
            partition,
            ..shared
        }
    }

    fn troubles(&self) -> MutexGuard<'_, Troubles> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step in the database that needs no lease has ended.
    pub(super) fn step<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Err(error) if is_lost_conflict(error) => self.conflict_is_lost(error),
            Err(error) if !is_final(error) => self.database_fails(error),
            _ => self.database_serves(),
        }
        done
    }

    /// A step in the database under a lease has ended. A stale token is a reply of a database that
    /// serves.
    pub(super) fn leased_step<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Err(error) if error.kind() == ErrorKind::NotClaimed => self.database_serves(),
            _ => return self.step(done),
        }
        done
    }

    /// A database that serves replied, and the step is taken again.
    fn conflict_is_lost(&self, error: &Error) {
        let (relay, partition, reason) = (&*self.relay, self.partition, causes(error));
        debug!(relay, partition, error = reason, "a step lost a conflict");
        self.database_serves();
    }

    fn database_fails(&self, error: &Error) {
        let reason = causes(error);
        let mut troubles = self.troubles();
        let is_new = troubles.database_fails(self.partition, error.kind());
        self.status.database(Some(&reason));
        telemetry::relay_database_is_away(&self.relay, true);
        drop(troubles);
        let (relay, partition) = (&*self.relay, self.partition);
        if is_new {
            warn!(
                relay,
                partition,
                error = reason,
                "the database does not serve the relay, which tries again"
            );
        } else {
            debug!(
                relay,
                partition,
                error = reason,
                "the database does not serve the relay"
            );
        }
    }

    fn database_serves(&self) {
        let mut troubles = self.troubles();
        let ends = troubles.database_serves(self.partition);
        if !troubles.is_database_away() {
            self.status.database(None);
        }
        if ends {
            telemetry::relay_database_is_away(&self.relay, false);
            info!(relay = &*self.relay, "the database serves the relay again");
        }
    }

    /// The broker did not answer.
    pub(super) fn broker_fails(&self, message: &OutgoingMessage, error: &PublishError) {
        let (topic, reason) = (&message.topic, error.reason());
        let mut troubles = self.troubles();
        let is_new = troubles.broker_fails(self.partition);
        self.status.broker(Some(&reason));
        telemetry::relay_broker_is_away(&self.relay, true);
        drop(troubles);
        let (relay, partition, id) = (&*self.relay, self.partition, message.message_id);
        if is_new {
            warn!(relay, partition, topic, message.id = %id, error = reason, "the broker is not available: effects wait");
        } else {
            debug!(relay, partition, topic, message.id = %id, error = reason, "the broker is not available");
        }
    }

    /// The broker serves, and lacks what the publisher needs, such as its exchange.
    pub(super) fn broker_lacks(&self, error: &PublishError) {
        let reason = error.reason();
        let mut troubles = self.troubles();
        let is_new = troubles.broker_lacks(&reason);
        self.status.broker_lacks(&reason);
        telemetry::relay_broker_is_away(&self.relay, false);
        drop(troubles);
        let (relay, partition) = (&*self.relay, self.partition);
        if is_new {
            warn!(
                relay,
                partition,
                error = reason,
                "the broker serves and cannot take effects"
            );
        } else {
            debug!(
                relay,
                partition,
                error = reason,
                "the broker cannot take effects"
            );
        }
    }

    /// The broker is away, and no effect shows it. It may have served in between.
    pub(super) fn broker_is_away_still(&self, reason: &str) {
        let mut troubles = self.troubles();
        if troubles.broker_lacked_something() {
            self.status.broker(Some(reason));
            telemetry::relay_broker_is_away(&self.relay, true);
        }
        drop(troubles);
        debug!(
            relay = &*self.relay,
            partition = self.partition,
            error = reason,
            "the broker is not available"
        );
    }

    /// The broker answered, whatever it said.
    pub(super) fn broker_answers(&self) {
        let mut troubles = self.troubles();
        let ends = troubles.broker_answers(self.partition);
        if !troubles.is_broker_away() {
            self.status.broker(None);
        }
        if ends {
            telemetry::relay_broker_is_away(&self.relay, false);
            info!(relay = &*self.relay, "the broker is available again");
        }
    }

    /// The broker refused an effect because of its topic.
    pub(super) fn topic_fails(&self, message: &OutgoingMessage, error: &PublishError) {
        let (topic, reason) = (&message.topic, error.reason());
        let mut troubles = self.troubles();
        if troubles.topic_fails(self.partition, topic, &reason) {
            self.show_topics(&troubles);
        }
        let is_logged = troubles.logs_topic_now(topic);
        drop(troubles);
        let (relay, partition, id) = (&*self.relay, self.partition, message.message_id);
        if is_logged {
            warn!(relay, partition, topic, message.id = %id, error = reason, "a topic is not available: its effects wait");
        } else {
            debug!(relay, partition, topic, message.id = %id, error = reason, "a topic is not available");
        }
    }

    /// The broker confirmed an effect of this topic.
    pub(super) fn topic_takes(&self, topic: &str) {
        let mut troubles = self.troubles();
        let is_logged = troubles.is_topic_logged(topic);
        if troubles.topic_takes(self.partition, topic) {
            self.show_topics(&troubles);
            let relay = &*self.relay;
            if is_logged {
                info!(relay, topic, "a topic is available again");
            } else {
                debug!(relay, topic, "a topic is available again");
            }
        }
    }

    /// No effect of this topic is left in the batch of the partition.
    pub(super) fn topic_has_no_effects(&self, topic: &str) {
        let mut troubles = self.troubles();
        if troubles.topic_takes(self.partition, topic) {
            self.show_topics(&troubles);
            info!(
                relay = &*self.relay,
                topic, "no effect waits for a topic any more"
            );
        }
    }

    /// The partition begins a batch with effects of these topics.
    pub(super) fn has_batch(&self, has_topic: impl Fn(&str) -> bool) {
        let mut troubles = self.troubles();
        if troubles.keep_topics(self.partition, has_topic) {
            self.show_topics(&troubles);
        }
    }

    /// The partition has no batch, so it waits for no topic. If the broker was away, publishing no
    /// longer shows when it is back: see [`is_broker_away`](Self::is_broker_away).
    pub(super) fn has_no_batch(&self) {
        let mut troubles = self.troubles();
        if troubles.keep_topics(self.partition, |_| false) {
            self.show_topics(&troubles);
        }
    }

    /// Whether the broker was away when this partition asked last.
    pub(super) fn is_broker_away(&self) -> bool {
        self.troubles().is_broker_away_for(self.partition)
    }

    /// The broker accepts connections again, and no effect shows whether it takes any.
    pub(super) fn broker_accepts(&self) {
        let mut troubles = self.troubles();
        troubles.forget_broker(self.partition);
        self.broker_may_be_unknown(&mut troubles);
    }

    /// The relay is gone, and all its partitions have ended.
    pub(super) fn partitions_are_gone(&self) {
        let mut troubles = self.troubles();
        troubles.partitions_are_gone();
        self.show_topics(&troubles);
        self.broker_may_be_unknown(&mut troubles);
    }

    /// No partition waits for the broker any more, and no effect has shown that it is back.
    fn broker_may_be_unknown(&self, troubles: &mut Troubles) {
        if troubles.broker_is_unknown() {
            self.status.broker_is_unknown();
            telemetry::relay_broker_is_away(&self.relay, false);
            info!(
                relay = &*self.relay,
                "no effect waits for the broker any more"
            );
        }
    }

    fn show_topics(&self, troubles: &Troubles) {
        self.status.topics(troubles);
        telemetry::relay_unavailable_topics(&self.relay, troubles.topics().count());
    }
}
