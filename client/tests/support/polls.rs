//! Helpers that drop a future at one of its await points.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// The time at which the future is dropped after its last poll.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// Immediately, while the future is still pending.
    AtOnce,
    /// As soon as the waker of the future is called.
    WhenWoken,
}

/// Polls a future at most `times` times. Returns `None` if the future was still pending and was
/// dropped.
pub async fn poll_times<F: Future>(future: F, times: usize, moment: Moment) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == times && moment == Moment::AtOnce => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
