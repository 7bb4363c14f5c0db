//! What the connections of a proxy share: the faults that a test has requested.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::protocol::Message;

/// The point at which the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The connection is lost when the client sends COMMIT. The server does not execute it, and
    /// rolls back.
    BeforeCommit,
    /// The server commits, and the connection is lost before the client gets the reply.
    AfterCommit,
}

#[derive(Clone, Copy)]
pub(super) struct Request {
    pub cut: Cut,
    /// Whether the proxy closes new connections after the cut.
    pub is_last: bool,
}

#[derive(Default)]
pub(super) struct Line {
    pub requested: Mutex<Option<Request>>,
    is_down: AtomicBool,
    pub was_cut: AtomicBool,
    pub cancelled: Mutex<Option<String>>,
    pub has_cancelled: AtomicBool,
    pub removes_comments: AtomicBool,
    pub turns: AtomicUsize,
}

impl Line {
    /// Returns whether the proxy closes new connections.
    pub fn is_down(&self) -> bool {
        self.is_down.load(SeqCst)
    }

    pub fn count_turn(&self) {
        self.turns.fetch_add(1, SeqCst);
    }

    /// Returns whether the test has requested a cut at the point `at`. Removes the request, so that
    /// only one connection is cut.
    pub fn cuts_at(&self, at: Cut) -> bool {
        let request = lock(&self.requested).take_if(|request| request.cut == at);
        if let Some(Request { is_last, .. }) = request {
            if is_last {
                self.is_down.store(true, SeqCst);
            }
            self.was_cut.store(true, SeqCst);
        }
        request.is_some()
    }

    /// Returns whether the reply to a COMMIT that is sent now is to be lost.
    pub fn loses_the_reply(&self) -> bool {
        lock(&self.requested).is_some_and(|request| request.cut == Cut::AfterCommit)
    }

    /// Returns whether the test has requested that the server cancels this message. Removes the
    /// request.
    pub fn cancels(&self, message: &Message) -> bool {
        let taken = lock(&self.cancelled).take_if(|sql| message.is_query(sql));
        if taken.is_some() {
            self.has_cancelled.store(true, SeqCst);
        }
        taken.is_some()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
