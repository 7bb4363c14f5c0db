//! The point at which a worker is killed.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// The point at which a worker is killed: a request, and a moment of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The number of the request, counted from 0 over all connections of the worker.
    pub request: usize,
    /// The moment of the request.
    pub moment: Moment,
}

/// A moment between the start of a request and the end of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Before any byte of the request is forwarded.
    Unsaid,
    /// After half of the request is forwarded.
    Torn,
    /// After the server has responded, before the response is forwarded.
    Unheard,
    /// After the response is forwarded.
    Heard,
}

/// The planned kill of one worker, and the requests of that worker so far. All proxies of the
/// worker share this value.
#[derive(Default)]
pub struct Fate {
    point: Option<Point>,
    story: Mutex<Story>,
    struck: Notify,
}

#[derive(Default)]
struct Story {
    requests: Vec<String>,
    is_over: bool,
}

impl Fate {
    /// Creates the fate of a worker that is killed at `point`, or not killed if it is `None`.
    #[must_use]
    pub fn new(point: Option<Point>) -> Self {
        Self {
            point,
            ..Self::default()
        }
    }

    /// Records the start of a request with this name. Returns the moment of the kill if the worker
    /// is killed at this request.
    pub(super) fn count_request(&self, name: String) -> Option<Moment> {
        let mut story = self.story();
        let request = story.requests.len();
        story.requests.push(name);
        self.point
            .filter(|point| point.request == request)
            .map(|point| point.moment)
    }

    /// Makes the proxies forward nothing from now on.
    pub(super) fn seal(&self) {
        self.story().is_over = true;
    }

    /// Makes the proxies forward nothing, and wakes the task in [`strikes`](Self::strikes), which
    /// kills the worker.
    pub(super) fn strike(&self) {
        self.seal();
        self.struck.notify_one();
    }

    /// Waits until the worker has to be killed.
    pub(super) async fn strikes(&self) {
        self.struck.notified().await;
    }

    /// Returns whether the proxies have stopped forwarding data.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.story().is_over
    }

    /// Returns the names of the requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.story().requests.clone()
    }

    fn story(&self) -> MutexGuard<'_, Story> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsaid => "before request",
            Self::Torn => "half of request",
            Self::Unheard => "before response",
            Self::Heard => "after response",
        })
    }
}
