//! The workers of a consumer: collect messages, process them, settle them.

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
            let error = runtime.intake.lock().await.take_last_error();
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
