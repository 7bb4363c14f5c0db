//! When a worker dies.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// Where a worker is killed: at which turn of all that it says, and when of that turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Counted from 0, over all lines.
    pub turn: usize,
    /// Before or after what.
    pub moment: Moment,
}

/// When of a turn, which is a request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Nothing of the request has passed.
    Unsaid,
    /// Half of the request has passed.
    Torn,
    /// The request was taken and answered; the answer has not passed.
    Unheard,
    /// The answer has passed.
    Heard,
}

/// The fate of one worker, shared by its lines.
#[derive(Default)]
pub struct Fate {
    point: Option<Point>,
    story: Mutex<Story>,
    struck: Notify,
}

#[derive(Default)]
struct Story {
    turns: Vec<String>,
    is_over: bool,
}

impl Fate {
    /// It dies there, or not at all.
    #[must_use]
    pub fn new(point: Option<Point>) -> Self {
        Self {
            point,
            ..Self::default()
        }
    }

    /// A turn begins. Answers when of it the worker dies, if it does.
    pub(super) fn turn(&self, name: String) -> Option<Moment> {
        let mut story = self.story();
        let turn = story.turns.len();
        story.turns.push(name);
        self.point
            .filter(|point| point.turn == turn)
            .map(|point| point.moment)
    }

    /// From now on nothing passes.
    pub(super) fn seal(&self) {
        self.story().is_over = true;
    }

    /// Nothing passes, and whoever waits for it kills the worker.
    pub(super) fn strike(&self) {
        self.seal();
        self.struck.notify_one();
    }

    /// Returns when the worker has to be killed.
    pub(super) async fn strikes(&self) {
        self.struck.notified().await;
    }

    /// Whether nothing passes any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.story().is_over
    }

    /// What was said, a name for each turn.
    #[must_use]
    pub fn turns(&self) -> Vec<String> {
        self.story().turns.clone()
    }

    fn story(&self) -> MutexGuard<'_, Story> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsaid => "not said",
            Self::Torn => "half said",
            Self::Unheard => "done, not heard",
            Self::Heard => "heard",
        })
    }
}
