//! Converts panics of handlers, sources and publishers into errors.

use std::{any::Any, future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use tokio::task::JoinError;

use crate::Error;

/// A panic as an error.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub(crate) struct Panicked(String);

/// Converts a panic of `work` into an error. With and without a panic, everything that `work` owns
/// is dropped.
pub(crate) async fn unwinding<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|panic| Panicked(text(&*panic)))
}

/// Returns the error of a task that panicked; `None` for a task that was aborted.
pub(crate) fn of_task(ended: JoinError) -> Option<Error> {
    let panic = ended.try_into_panic().ok()?;
    Some(Error::WorkerPanicked(text(&*panic)))
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}
