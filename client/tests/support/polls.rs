//! Futures that are dropped at one of their awaits.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// When the future goes after its last poll.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// While it waits.
    AtOnce,
    /// When what it waits for has come.
    WhenWoken,
}

/// Polls a future so many times; `None` when that was not enough and it was dropped.
pub async fn poll_times<F: Future>(future: F, times: usize, moment: Moment) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if polls == times && moment == Moment::AtOnce => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
