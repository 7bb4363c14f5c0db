//! Serves one partition: leases, publishes and acknowledges batches.

use std::{future::Future, sync::Arc, time::Duration};

use idem_client::ErrorKind;
use idem_client::relay::Batch;
use tokio::{
    select,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    PublishError, Publisher,
    batch::{self, BatchOutcome, Broker, Context},
    commit_notifier::CommitNotifier,
    effect_memory::EffectMemory,
    errors::{is_final, is_gone},
    settings::AWAY,
    statements::RelayStatements,
};
use crate::{Error, backoff::Backoff, error::causes, telemetry};

/// The first and the longest sleep of an idle partition without a notification. A partition must
/// also find the batches of a crashed process, and no notification is sent for them.
const IDLE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

pub(super) struct Partition<P> {
    steps: RelayStatements,
    publisher: Arc<P>,
    commit_notifier: Arc<CommitNotifier>,
    stop: CancellationToken,
    memory: EffectMemory,
    broker: Broker,
}

impl<P: Publisher> Partition<P> {
    pub(super) fn new(
        steps: RelayStatements,
        publisher: Arc<P>,
        commit_notifier: Arc<CommitNotifier>,
        stop: CancellationToken,
    ) -> Self {
        // Enough for the current batch, and for one more batch that another process has taken over.
        let remembers = 2 * usize::try_from(steps.settings.batch).unwrap_or(1).max(1);
        Self {
            steps,
            publisher,
            commit_notifier,
            stop,
            memory: EffectMemory::new(remembers),
            broker: Broker {
                is_away: false,
                backoff: Backoff::new(AWAY.0, AWAY.1),
            },
        }
    }

    /// Runs until the relay stops. Returns an error only if it is permanent, or if the relay no
    /// longer exists in the database.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        let (commit_notifier, stop) = (Arc::clone(&self.commit_notifier), self.stop.clone());
        let mut rung = commit_notifier.listen();
        let mut idle = Backoff::new(IDLE.0, IDLE.1);
        let mut away = Backoff::new(AWAY.0, AWAY.1);
        while !stop.is_cancelled() {
            // Every commit after this line causes a notification, whether or not the next statement
            // finds its effects. So no commit is missed.
            rung.mark_unchanged();
            let requested_at = Instant::now();
            let Some(next) = self.within_grace(self.steps.next()).await else {
                return Ok(());
            };
            match next {
                Ok(Some(batch)) => {
                    away.reset();
                    idle.reset();
                    telemetry::publishes_batch(
                        &self.steps.settings.name,
                        self.steps.partition,
                        &batch.messages,
                    );
                    self.work(&batch, requested_at).await?;
                }
                Ok(None) => {
                    away.reset();
                    self.steps.reporter.has_no_batch();
                    telemetry::nothing_waits(&self.steps.settings.name, self.steps.partition);
                    if self.steps.reporter.is_broker_away() {
                        self.look_for_broker().await;
                        continue;
                    }
                    let _idle = commit_notifier.idle();
                    select! {
                        () = stop.cancelled() => {}
                        _ = rung.changed() => idle.reset(),
                        () = sleep(idle.next()) => {}
                    }
                }
                Err(error) if is_final(&error) || is_gone(&error) => return Err(error),
                // The error is already logged.
                Err(_) => self.rest(away.next()).await,
            }
        }
        Ok(())
    }

    /// Checks whether a broker that was unavailable accepts connections. Another process has taken
    /// over the effects that waited for the broker, so publishing cannot show this.
    async fn look_for_broker(&mut self) {
        let limit = self.steps.settings.publish_timeout;
        let check = select! {
            () = self.stop.cancelled() => return,
            check = timeout(limit, self.publisher.check()) => check,
        };
        match check {
            Ok(Ok(())) => {
                self.broker.backoff.reset();
                return self.steps.reporter.broker_accepts();
            }
            Ok(Err(error @ PublishError::TopicUnavailable(_))) => {
                self.steps.reporter.broker_lacks(&error)
            }
            Ok(Err(error)) => self.steps.reporter.broker_is_away_still(&error.reason()),
            Err(_) => self
                .steps
                .reporter
                .broker_is_away_still("the broker does not respond"),
        }
        let pause = self.broker.backoff.next();
        self.rest(pause).await;
    }

    async fn work(&mut self, batch: &Batch, requested_at: Instant) -> Result<(), Error> {
        let context = Context {
            steps: &self.steps,
            publisher: &*self.publisher,
            stop: &self.stop,
            memory: &mut self.memory,
            broker: &mut self.broker,
        };
        let outcome = if self.stop.is_cancelled() {
            // The batch arrived after the shutdown was requested, so it is released unpublished.
            BatchOutcome::Unfinished { token: batch.token }
        } else {
            batch::publish(context, batch, requested_at).await?
        };
        match outcome {
            BatchOutcome::Done { token } => self.acknowledge(batch, token).await,
            BatchOutcome::Unfinished { token } if self.stop.is_cancelled() => {
                // Release the batch, so that other processes need not wait for the end of the
                // lease.
                if let Some(Err(error)) = self.within_grace(self.steps.give_back(token)).await {
                    debug!(partition = self.steps.partition, %error, "cannot release a batch");
                }
                Ok(())
            }
            // The lease has ended, so any process can lease the batch. If the broker is unavailable
            // here, pause, so that a process that reaches the broker leases the batch first.
            BatchOutcome::Unfinished { .. } => {
                if self.broker.is_away {
                    let pause = self.broker.backoff.next();
                    self.rest(pause).await;
                }
                Ok(())
            }
        }
    }

    /// Acknowledges a published batch. Retries until the database confirms the acknowledgement, or
    /// another process has leased the batch.
    async fn acknowledge(&mut self, batch: &Batch, token: i64) -> Result<(), Error> {
        let mut away = Backoff::new(AWAY.0, AWAY.1);
        let mut stop_at = None;
        loop {
            let Some(acknowledged) = self.within_grace(self.steps.ack(token)).await else {
                return Ok(());
            };
            match acknowledged {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::NotClaimed => {
                    // The same error is returned if an earlier acknowledgement took effect and its
                    // reply was lost.
                    let (partition, error) = (self.steps.partition, causes(&error));
                    warn!(partition, error, "another process has taken over a batch");
                    break;
                }
                Err(error) if is_final(&error) || is_gone(&error) => return Err(error),
                // The batch is published but not acknowledged, so retry. The error is already
                // logged.
                Err(_) => {
                    let pause = away.next();
                    if self.stop.is_cancelled() {
                        let until =
                            *stop_at.get_or_insert(Instant::now() + self.steps.settings.grace);
                        if Instant::now() >= until {
                            return Ok(());
                        }
                        sleep(pause.min(until - Instant::now())).await;
                    } else {
                        self.rest(pause).await;
                    }
                }
            }
        }
        for message in &batch.messages {
            self.memory.forget(message);
        }
        self.steps.reporter.has_no_batch();
        Ok(())
    }

    /// Runs a statement in the database. Returns `None` if the relay stops and no reply arrives
    /// within the grace period. The lease then expires by itself.
    async fn within_grace<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let over = async {
            self.stop.cancelled().await;
            sleep(self.steps.settings.grace).await;
        };
        select! {
            biased;
            done = step => Some(done),
            () = over => None,
        }
    }

    async fn rest(&self, pause: Duration) {
        select! {
            () = self.stop.cancelled() => {}
            () = sleep(pause) => {}
        }
    }
}
