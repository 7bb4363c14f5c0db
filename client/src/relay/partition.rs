//! The work on one partition: lease, publish, acknowledge.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    select,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    Batch, PublishError, Publisher,
    batch::{self, Broker, Context, Outcome},
    bell::Bell,
    memory::Memory,
    pauses::Pauses,
    runtime::AWAY,
    steps::{Steps, is_final, is_gone},
};
use crate::{Error, ErrorKind, error::causes, telemetry};

/// How long an idle partition sleeps that nobody wakes: first, and at most. Another process may
/// have died over it.
const IDLE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

pub(super) struct Partition<P> {
    steps: Steps,
    publisher: Arc<P>,
    bell: Arc<Bell>,
    stop: CancellationToken,
    memory: Memory,
    broker: Broker,
}

impl<P: Publisher> Partition<P> {
    pub(super) fn new(
        steps: Steps,
        publisher: Arc<P>,
        bell: Arc<Bell>,
        stop: CancellationToken,
    ) -> Self {
        // A batch, and one that another process has taken over meanwhile.
        let remembers = 2 * usize::try_from(steps.settings.batch).unwrap_or(1).max(1);
        Self {
            steps,
            publisher,
            bell,
            stop,
            memory: Memory::new(remembers),
            broker: Broker {
                is_away: false,
                pauses: Pauses::new(AWAY.0, AWAY.1),
            },
        }
    }

    /// Works until it is told to stop. The error is final, or says that the relay is gone.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        let (bell, stop) = (Arc::clone(&self.bell), self.stop.clone());
        let mut rung = bell.listen();
        let mut idle = Pauses::new(IDLE.0, IDLE.1);
        let mut away = Pauses::new(AWAY.0, AWAY.1);
        while !stop.is_cancelled() {
            // What is committed from here on rings, whether this look finds it or not.
            rung.mark_unchanged();
            let asked = Instant::now();
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
                    self.work(&batch, asked).await?;
                }
                Ok(None) => {
                    away.reset();
                    self.steps.notes.has_no_batch();
                    telemetry::nothing_waits(&self.steps.settings.name, self.steps.partition);
                    if self.steps.notes.is_broker_away() {
                        self.look_for_broker().await;
                        continue;
                    }
                    let _idle = bell.idle();
                    select! {
                        () = stop.cancelled() => {}
                        _ = rung.changed() => idle.reset(),
                        () = sleep(idle.next()) => {}
                    }
                }
                Err(error) if is_final(&error) || is_gone(&error) => return Err(error),
                // The step is in the log.
                Err(_) => self.rest(away.next()).await,
            }
        }
        Ok(())
    }

    /// Connects to a broker that was away. Another process has the batch that waited for it, so no
    /// effect shows whether it is back.
    async fn look_for_broker(&mut self) {
        let patience = self.steps.settings.publish_timeout;
        let check = select! {
            () = self.stop.cancelled() => return,
            check = timeout(patience, self.publisher.check()) => check,
        };
        match check {
            Ok(Ok(())) => {
                self.broker.pauses.reset();
                return self.steps.notes.broker_accepts();
            }
            Ok(Err(error @ PublishError::TopicUnavailable(_))) => {
                self.steps.notes.broker_lacks(&error)
            }
            Ok(Err(error)) => self.steps.notes.broker_is_away_still(&error.reason()),
            Err(_) => self.steps.notes.broker_is_away_still("it does not respond"),
        }
        let pause = self.broker.pauses.next();
        self.rest(pause).await;
    }

    async fn work(&mut self, batch: &Batch, asked: Instant) -> Result<(), Error> {
        let context = Context {
            steps: &self.steps,
            publisher: &*self.publisher,
            stop: &self.stop,
            memory: &mut self.memory,
            broker: &mut self.broker,
        };
        let outcome = if self.stop.is_cancelled() {
            // It came after we were told to stop.
            Outcome::Unfinished { token: batch.token }
        } else {
            batch::publish(context, batch, asked).await?
        };
        match outcome {
            Outcome::Done { token } => self.acknowledge(batch, token).await,
            Outcome::Unfinished { token } if self.stop.is_cancelled() => {
                // Nobody shall have to wait for the lease. If this fails, they do.
                if let Some(Err(error)) = self.within_grace(self.steps.give_back(token)).await {
                    debug!(partition = self.steps.partition, %error, "a batch could not be given back");
                }
                Ok(())
            }
            // The lease is over: whoever asks next gets it, and whoever reaches the broker shall be
            // first.
            Outcome::Unfinished { .. } => {
                if self.broker.is_away {
                    let pause = self.broker.pauses.next();
                    self.rest(pause).await;
                }
                Ok(())
            }
        }
    }

    /// Everything was published: tries until the database says so, or has given the batch to
    /// another process.
    async fn acknowledge(&mut self, batch: &Batch, token: i64) -> Result<(), Error> {
        let mut away = Pauses::new(AWAY.0, AWAY.1);
        let mut given_up_at = None;
        loop {
            let Some(acknowledged) = self.within_grace(self.steps.ack(token)).await else {
                return Ok(());
            };
            match acknowledged {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::NotClaimed => {
                    // Or an acknowledgement took effect whose answer was lost.
                    let (partition, error) = (self.steps.partition, causes(&error));
                    warn!(partition, error, "another process has taken over a batch");
                    break;
                }
                Err(error) if is_final(&error) || is_gone(&error) => return Err(error),
                // A batch that is published is not acknowledged yet. The step is in the log.
                Err(_) => {
                    let pause = away.next();
                    if self.stop.is_cancelled() {
                        let until =
                            *given_up_at.get_or_insert(Instant::now() + self.steps.settings.grace);
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
        self.steps.notes.has_no_batch();
        Ok(())
    }

    /// A step in the database; `None` when the relay is told to stop and no answer comes. Then the
    /// lease runs out by itself.
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
