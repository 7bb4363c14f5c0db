//! Reports what a partition observes of the database, the broker and the topics. Each observation
//! updates the status and the metrics, and is logged when it is new.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idem_client::ErrorKind;
use idem_client::relay::OutgoingMessage;
use tracing::{debug, info};

use super::{
    PublishError,
    errors::{is_final, is_lost_conflict},
    outages::Outages,
    status::Status,
};
use crate::{
    Error,
    error::causes,
    telemetry::{self, warn_if_new},
};

/// Reports the observations of one partition. All partitions of a process share the status and the
/// outages.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    pub(super) status: Status,
    relay: Arc<str>,
    partition: i32,
    outages: Arc<Mutex<Outages>>,
}

impl Reporter {
    /// Creates the reporter of a relay that starts to run, for its partition 0.
    pub(super) fn new(relay: &str, status: Status) -> Self {
        telemetry::relay_begins(relay);
        Self {
            status,
            relay: relay.into(),
            partition: 0,
            outages: Arc::default(),
        }
    }

    pub(super) fn of_partition(&self, partition: i32) -> Self {
        let shared = self.clone();
        Self {
            partition,
            ..shared
        }
    }

    fn outages(&self) -> MutexGuard<'_, Outages> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a statement that needs no lease.
    pub(super) fn step<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Err(error) if is_lost_conflict(error) => self.conflict_lost(error),
            Err(error) if !is_final(error) => self.database_fails(error),
            _ => self.database_serves(),
        }
        done
    }

    /// Records the result of a statement under a lease. The error of a stale token also shows that
    /// the database is available.
    pub(super) fn leased_step<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Err(error) if error.kind() == ErrorKind::NotClaimed => self.database_serves(),
            _ => return self.step(done),
        }
        done
    }

    /// Records a lost conflict with a concurrent transaction. The conflict shows that the database
    /// is available. The statement is retried.
    fn conflict_lost(&self, error: &Error) {
        let (relay, partition, reason) = (&*self.relay, self.partition, causes(error));
        debug!(
            relay,
            partition,
            error = reason,
            "a statement of the relay lost a conflict"
        );
        self.database_serves();
    }

    fn database_fails(&self, error: &Error) {
        let reason = causes(error);
        let mut outages = self.outages();
        let is_new = outages.database_fails(self.partition, error.kind());
        self.status.database(Some(&reason));
        telemetry::relay_database_is_away(&self.relay, true);
        drop(outages);
        let (relay, partition) = (&*self.relay, self.partition);
        warn_if_new!(
            is_new,
            relay,
            partition,
            error = reason,
            "the database is not available to the relay, which retries"
        );
    }

    fn database_serves(&self) {
        let mut outages = self.outages();
        let ends = outages.database_serves(self.partition);
        if !outages.is_database_away() {
            self.status.database(None);
        }
        if ends {
            telemetry::relay_database_is_away(&self.relay, false);
            info!(
                relay = &*self.relay,
                "the database is available to the relay again"
            );
        }
    }

    /// Records that the broker is unavailable.
    pub(super) fn broker_fails(&self, message: &OutgoingMessage, error: &PublishError) {
        let (topic, reason) = (&message.topic, error.reason());
        let mut outages = self.outages();
        let is_new = outages.broker_fails(self.partition);
        self.status.broker(Some(&reason));
        telemetry::relay_broker_is_away(&self.relay, true);
        drop(outages);
        let (relay, partition, id) = (&*self.relay, self.partition, message.message_id);
        warn_if_new!(
            is_new,
            relay,
            partition,
            topic,
            message.id = %id,
            error = reason,
            "the broker is not available: effects wait"
        );
    }

    /// Records that the broker is available but lacks something that the publisher needs, such as
    /// its exchange.
    pub(super) fn broker_lacks(&self, error: &PublishError) {
        let reason = error.reason();
        let mut outages = self.outages();
        let is_new = outages.broker_lacks(&reason);
        self.status.broker_lacks(&reason);
        telemetry::relay_broker_is_away(&self.relay, false);
        drop(outages);
        let (relay, partition) = (&*self.relay, self.partition);
        warn_if_new!(
            is_new,
            relay,
            partition,
            error = reason,
            "the broker is available but cannot accept effects"
        );
    }

    /// Records that a check has found the broker still unavailable. Since the last check, the
    /// broker may have been available but lacked something.
    pub(super) fn broker_is_away_still(&self, reason: &str) {
        let mut outages = self.outages();
        if outages.broker_lacked_something() {
            self.status.broker(Some(reason));
            telemetry::relay_broker_is_away(&self.relay, true);
        }
        drop(outages);
        debug!(
            relay = &*self.relay,
            partition = self.partition,
            error = reason,
            "the broker is not available"
        );
    }

    /// Records that the broker replied, with success or an error.
    pub(super) fn broker_answers(&self) {
        let mut outages = self.outages();
        let ends = outages.broker_answers(self.partition);
        if !outages.is_broker_away() {
            self.status.broker(None);
        }
        if ends {
            telemetry::relay_broker_is_away(&self.relay, false);
            info!(relay = &*self.relay, "the broker is available again");
        }
    }

    /// Records that the broker did not accept an effect because of its topic.
    pub(super) fn topic_fails(&self, message: &OutgoingMessage, error: &PublishError) {
        let (topic, reason) = (&message.topic, error.reason());
        let mut outages = self.outages();
        if outages.topic_fails(self.partition, topic, &reason) {
            self.show_topics(&outages);
        }
        let is_logged = outages.logs_topic_now(topic);
        drop(outages);
        let (relay, partition, id) = (&*self.relay, self.partition, message.message_id);
        warn_if_new!(
            is_logged,
            relay,
            partition,
            topic,
            message.id = %id,
            error = reason,
            "a topic is not available: its effects wait"
        );
    }

    /// Records that the broker confirmed an effect of this topic.
    pub(super) fn topic_takes(&self, topic: &str) {
        let mut outages = self.outages();
        let is_logged = outages.is_topic_logged(topic);
        if outages.topic_takes(self.partition, topic) {
            self.show_topics(&outages);
            let relay = &*self.relay;
            if is_logged {
                info!(relay, topic, "a topic is available again");
            } else {
                debug!(relay, topic, "a topic is available again");
            }
        }
    }

    /// Records that the batch of the partition has no more effects of this topic.
    pub(super) fn topic_has_no_effects(&self, topic: &str) {
        let mut outages = self.outages();
        if outages.topic_takes(self.partition, topic) {
            self.show_topics(&outages);
            info!(
                relay = &*self.relay,
                topic, "no effect waits for a topic any more"
            );
        }
    }

    /// Records that the partition begins a batch with effects of these topics.
    pub(super) fn has_batch(&self, has_topic: impl Fn(&str) -> bool) {
        let mut outages = self.outages();
        if outages.keep_topics(self.partition, has_topic) {
            self.show_topics(&outages);
        }
    }

    /// Records that the partition has no batch, so that it waits for no topic. If the broker was
    /// unavailable, publishing can no longer show when it is available again: see
    /// [`is_broker_away`](Self::is_broker_away).
    pub(super) fn has_no_batch(&self) {
        let mut outages = self.outages();
        if outages.keep_topics(self.partition, |_| false) {
            self.show_topics(&outages);
        }
    }

    /// Returns what the batch of the partition waits for.
    pub(super) fn waits_for(&self) -> Option<String> {
        self.outages().cause_of(self.partition)
    }

    /// Returns whether the broker was unavailable when this partition last used it.
    pub(super) fn is_broker_away(&self) -> bool {
        self.outages().is_broker_away_for(self.partition)
    }

    /// Records that the broker accepts connections again. Nothing was published, so it is not known
    /// whether the broker accepts effects.
    pub(super) fn broker_accepts(&self) {
        let mut outages = self.outages();
        outages.forget_broker(self.partition);
        self.broker_may_be_unknown(&mut outages);
    }

    /// Records that the relay was dropped and all its partitions have ended.
    pub(super) fn partitions_are_gone(&self) {
        let mut outages = self.outages();
        outages.partitions_are_gone();
        self.show_topics(&outages);
        self.broker_may_be_unknown(&mut outages);
    }

    /// Ends the failure of the broker if no partition waits for it any more. No effect has shown
    /// that the broker is available again, so its state is now unknown.
    fn broker_may_be_unknown(&self, outages: &mut Outages) {
        if outages.broker_is_unknown() {
            self.status.broker_is_unknown();
            telemetry::relay_broker_is_away(&self.relay, false);
            info!(
                relay = &*self.relay,
                "no effect waits for the broker any more"
            );
        }
    }

    fn show_topics(&self, outages: &Outages) {
        self.status.topics(outages);
        telemetry::relay_unavailable_topics(&self.relay, outages.topics().count());
    }
}
