//! Serves one partition: leases, publishes and acknowledges batches.

use std::{sync::Arc, time::Duration};

use idem_client::ErrorKind;
use idem_client::relay::Batch;
use tokio::{
    select,
    time::{Instant, sleep},
};
use tracing::{debug, warn};

use super::{
    Publisher,
    batch::{self, BatchOutcome, Broker, Context},
    effect_memory::EffectMemory,
    errors::{is_final, is_gone},
    publisher::check_within,
    serving::PartitionTask,
    settings::AWAY,
    statements::RelayStatements,
};
use crate::{Error, error::causes, telemetry};

/// The shortest lease that the server accepts. To release a batch, the end of its lease is set to
/// this time from now.
const GIVEN_BACK: Duration = Duration::from_millis(1);

pub(super) struct Partition<P> {
    steps: RelayStatements,
    publisher: Arc<P>,
    task: PartitionTask,
    memory: EffectMemory,
    broker: Broker,
}

impl<P: Publisher> Partition<P> {
    pub(super) fn new(steps: RelayStatements, publisher: Arc<P>, task: PartitionTask) -> Self {
        // Enough for the current batch, and for one more batch that another process has taken over.
        let remembers = 2 * usize::try_from(steps.settings.batch).unwrap_or(1).max(1);
        Self {
            steps,
            publisher,
            task,
            memory: EffectMemory::new(remembers),
            broker: Broker {
                is_away: false,
                backoff: AWAY.start(),
            },
        }
    }

    /// Runs until the relay stops. Returns an error only if it is permanent, or if the relay no
    /// longer exists in the database.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        let mut away = AWAY.start();
        let (relay, partition) = (
            self.steps.settings.name.clone(),
            self.task.reporter.partition,
        );
        while !self.task.stop.is_cancelled() {
            let requested_at = Instant::now();
            let Some(next) = self.task.look(self.steps.next()).await else {
                return Ok(());
            };
            match next {
                Ok(Some(batch)) => {
                    away.reset();
                    self.task.idle.reset();
                    telemetry::publishes_batch(&relay, partition, &batch.messages);
                    self.work(&batch, requested_at).await?;
                }
                Ok(None) => {
                    away.reset();
                    self.task.reporter.keep_topics(|_| false);
                    telemetry::nothing_waits(&relay, partition);
                    if self.task.reporter.is_broker_away() {
                        self.look_for_broker().await;
                    } else {
                        self.task.wait_for_commit().await;
                    }
                }
                Err(error) if is_final(&error) || is_gone(&error) => return Err(error),
                // The error is already logged.
                Err(_) => self.task.rest(away.next()).await,
            }
        }
        Ok(())
    }

    /// Checks whether a broker that was unavailable accepts connections. Another process has taken
    /// over the effects that waited for the broker, so publishing cannot show this.
    async fn look_for_broker(&mut self) {
        let (limit, reporter) = (self.steps.settings.publish_timeout, &self.task.reporter);
        let check = select! {
            () = self.task.stop.cancelled() => return,
            check = check_within(limit, &*self.publisher) => check,
        };
        match check {
            Ok(()) => {
                self.broker.backoff.reset();
                return reporter.broker_accepts();
            }
            Err(error) => reporter.broker_fails(&error, None),
        }
        let pause = self.broker.backoff.next();
        self.task.rest(pause).await;
    }

    async fn work(&mut self, batch: &Batch, requested_at: Instant) -> Result<(), Error> {
        let context = Context {
            steps: &self.steps,
            publisher: &*self.publisher,
            stop: &self.task.stop,
            memory: &mut self.memory,
            broker: &mut self.broker,
        };
        let BatchOutcome { token, is_done } = if self.task.stop.is_cancelled() {
            // The batch arrived after the shutdown was requested, so it is released unpublished.
            BatchOutcome {
                token: batch.token,
                is_done: false,
            }
        } else {
            batch::publish(context, batch, requested_at).await?
        };
        if is_done {
            return self.acknowledge(batch, token).await;
        }
        if self.task.stop.is_cancelled() {
            // Release the batch, so that other processes need not wait for the end of the lease.
            let released = self.steps.extend(token, GIVEN_BACK);
            if let Some(Err(error)) = self.task.within_grace(released).await {
                let partition = self.task.reporter.partition;
                debug!(partition, %error, "cannot release a batch");
            }
        } else if self.broker.is_away {
            // The lease has ended, so any process can lease the batch. Pause, so that a process
            // that reaches the broker leases the batch first.
            let pause = self.broker.backoff.next();
            self.task.rest(pause).await;
        }
        Ok(())
    }

    /// Acknowledges a published batch. Retries until the database confirms the acknowledgement, or
    /// another process has leased the batch.
    async fn acknowledge(&mut self, batch: &Batch, token: i64) -> Result<(), Error> {
        let mut away = AWAY.start();
        let mut stop_at = None;
        loop {
            let Some(acknowledged) = self.task.within_grace(self.steps.ack(token)).await else {
                return Ok(());
            };
            match acknowledged {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::NotClaimed => {
                    // The same error is returned if an earlier acknowledgement took effect and its
                    // reply was lost.
                    let (partition, error) = (self.task.reporter.partition, causes(&error));
                    warn!(partition, error, "another process has taken over a batch");
                    break;
                }
                Err(error) if is_final(&error) || is_gone(&error) => return Err(error),
                // The batch is published but not acknowledged, so retry, for the last time at the
                // end of the grace period. The error is already logged.
                Err(_) if self.task.stop.is_cancelled() => {
                    let until = *stop_at.get_or_insert(Instant::now() + self.steps.settings.grace);
                    if Instant::now() >= until {
                        return Ok(());
                    }
                    sleep(away.next().min(until - Instant::now())).await;
                }
                Err(_) => self.task.rest(away.next()).await,
            }
        }
        for message in &batch.messages {
            self.memory.forget(message);
        }
        Ok(())
    }
}
