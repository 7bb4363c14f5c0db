//! The workers of a consumer: collect messages, process them, settle them.
//!
//! The number of messages that a consumer holds is limited to its concurrency times its batch size,
//! or to two if that is larger. One worker fetches at a time, and only when it is free. A message
//! that is held is being processed, or waits for an earlier message of its key, for free bytes, or
//! for its next attempt. A failed message is redelivered after a pause that grows, and rejected
//! after a limit. With order by key it is retried in place, and the later messages of its key wait:
//! if it were returned to the broker, they would overtake it.
//!
//! When the database is not available, nothing is fetched, and messages that no worker has begun
//! are released; with order by key they wait here (see `breakers`). The consumer also reads the
//! requeued dead letters of its destinations once a second. The runtime limits no handler in time:
//! a lease is renewed for as long as the handler runs.

mod collect;
mod interrupted;
mod process;
mod settle;
mod state;
mod stop;
mod unprocessed;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Error, Source,
    consumer::{ended::SourceEnded, summary::Summary, workers::Workers},
};

pub(super) use state::Runtime;

/// The longest time for each step of a shutdown after the grace period: see `drain`.
const STOP_STEP_LIMIT: Duration = Duration::from_secs(5);
/// The limit for every wait. A longer wait counts as this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Returns the instant after this time, at most [`LONGEST_WAIT`] from now. [`Duration::MAX`] means
/// "never", but a clock cannot add it.
fn later(after: Duration) -> Instant {
    Instant::now() + after.min(LONGEST_WAIT)
}

/// Runs the workers until `shutdown` completes, the source ends or a worker panics, and then drains
/// them. Returns an error if the source ended or a worker panicked.
pub(super) async fn run<S: Source>(
    runtime: Arc<Runtime<S>>,
    shutdown: impl Future<Output = ()>,
) -> Result<Summary, Error> {
    let mut workers = Workers::new();
    for _ in 0..runtime.settings.concurrency {
        workers.spawn(Arc::clone(&runtime).work());
    }
    let is_requested = tokio::select! {
        biased;
        () = shutdown => true,
        () = workers.panicked_or_ended() => false,
    };
    tracing::info!(
        is_requested,
        "the consumer is stopping: no more messages are fetched"
    );
    runtime.drain(&mut workers).await;
    let summary = runtime.counters.summary();
    tracing::info!(?summary, "the consumer has stopped");
    match workers.into_error() {
        Some(panicked) => Err(panicked),
        None if is_requested => Ok(summary),
        None => {
            let error = runtime.intake.lock().await.source.last_error.take();
            Err(Error::SourceEnded(Box::new(SourceEnded { summary, error })))
        }
    }
}

impl<S: Source> Runtime<S> {
    async fn work(self: Arc<Self>) {
        loop {
            let batch = self.collect().await;
            if batch.is_empty() {
                return;
            }
            self.process(batch).await;
        }
    }
}
