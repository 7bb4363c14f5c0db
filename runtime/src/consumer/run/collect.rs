//! Collects the next batch: fetches messages and waits until some of them can be processed.

use std::sync::{Arc, atomic::Ordering};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

use super::{Runtime, STOP_STEP_LIMIT, later};
use crate::{
    Source,
    consumer::{
        intake::Intake,
        queue::{Next, QueuedMessage},
    },
    transport::wait_until,
};

impl<S: Source> Runtime<S> {
    /// Waits for the intake lock, and then for messages. Returns an empty batch only when the
    /// consumer stops or the source has ended.
    pub(super) async fn collect(&self) -> Vec<QueuedMessage> {
        let mut intake = self.intake.lock().await;
        let mut batch: Vec<QueuedMessage> = Vec::new();
        let mut until = None;
        loop {
            if self.stop.is_cancelled() {
                return batch;
            }
            if self.breakers.block_all() {
                self.wait_for_environment(std::mem::take(&mut batch)).await;
                until = None;
                continue;
            }
            if self.breakers.is_due() {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return batch,
                    () = self.breakers.probe_if_due(&self.pool) => continue,
                }
            }
            if batch.len() >= self.settings.batches.max {
                return batch;
            }
            match self.queue.take_within(self.bytes_left(&batch)) {
                Next::Message(queued) => {
                    batch.push(queued);
                    until.get_or_insert_with(|| later(self.settings.batches.linger));
                    continue;
                }
                Next::TooLarge => return batch,
                // The batch may hold the bytes that the next message waits for, so process the
                // batch first.
                Next::Nothing if self.queue.has_ahead() && !batch.is_empty() => return batch,
                Next::Nothing if self.queue.admit_beside_delayed(self.held_count()) => continue,
                Next::Nothing => {}
            }
            if intake.source.has_ended && (!batch.is_empty() || self.held_count() == 0) {
                return batch;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return batch,
                () = wait_until(until) => return batch,
                () = wait_until(self.queue.next_due()) => {}
                () = wait_until(self.breakers.next_probe()) => {}
                () = self.changed.notified() => {}
                () = self.queue.bytes_for_ahead(), if self.queue.has_ahead() => {}
                queued = self.fetch(&mut intake),
                    if !intake.source.has_ended && !self.queue.has_ahead() => match queued {
                    Some(queued) => self.queue.push(queued),
                    // From now on this worker waits until no message is held: see `finish`.
                    None => {
                        self.has_ended.swap(true, Ordering::AcqRel);
                    }
                },
            }
        }
    }

    /// Releases the messages that no worker has begun to process. Then waits until a message can be
    /// tried or the consumer stops.
    async fn wait_for_environment(&self, mut unbegun: Vec<QueuedMessage>) {
        unbegun.extend(std::iter::from_fn(|| self.queue.take_unbegun()));
        let mut given_back: FuturesUnordered<_> = unbegun
            .into_iter()
            .map(|queued| self.release_unkept(queued))
            .collect();
        // A broker that does not respond can delay a settlement for a long time. This worker holds
        // the intake lock meanwhile, for which the other workers wait. So it must stop waiting soon
        // after the consumer stops.
        tokio::select! {
            () = async { while given_back.next().await.is_some() {} } => {}
            () = async { self.stop.cancelled().await; sleep(STOP_STEP_LIMIT).await } => {
                self.count_unsettled(given_back.len());
            }
        }
        drop(given_back);
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.breakers.wait(&self.pool) => {}
        }
    }

    /// Fetches the next message. Cancel safe if the source is cancel safe.
    async fn fetch(&self, intake: &mut Intake<S>) -> Option<QueuedMessage> {
        let permit = Arc::clone(&self.room).acquire_owned().await.ok()?;
        let delivery = intake.next().await?;
        Some(QueuedMessage::new(delivery, self.is_ordered, permit))
    }

    /// Returns how many more bytes the batch may take. An empty batch takes a message of any size,
    /// so an oversized message becomes a batch of its own.
    fn bytes_left(&self, batch: &[QueuedMessage]) -> usize {
        match batch {
            [] => usize::MAX,
            batch => self
                .settings
                .max_batch_bytes()
                .saturating_sub(batch.iter().map(QueuedMessage::size).sum()),
        }
    }
}
