//! The doubt about a commit whose reply was lost.

use std::sync::Arc;

use idem_client::Error as Call;

use crate::Error;

/// Whether the result of an earlier commit of a message is unknown. The next claim shows the
/// result, or the next use of the lease.
#[derive(Clone, Default)]
pub(super) struct Doubt {
    cause: Option<Arc<tokio_postgres::Error>>,
    was_open: bool,
}

impl Doubt {
    /// Opens the doubt if the error is that of a commit with an unknown result.
    pub(super) fn note(&mut self, error: &Error) {
        if let Error::Client(Call::AmbiguousCommit(cause)) = error {
            (self.cause, self.was_open) = (Some(Arc::clone(cause)), true);
        }
    }

    /// Ends the doubt, because the result of the commit is known now.
    pub(super) fn resolve(&mut self) {
        self.cause = None;
    }

    pub(super) fn is_open(&self) -> bool {
        self.cause.is_some()
    }

    /// Returns whether the doubt is or was open.
    pub(super) fn was_open(&self) -> bool {
        self.was_open
    }

    /// Returns the error of the commit in place of a later error, while its result is unknown. A
    /// later error, such as a lost connection, would mean that nothing took effect.
    pub(super) fn in_place_of(&self, error: Error) -> Error {
        match &self.cause {
            Some(cause) => Call::AmbiguousCommit(Arc::clone(cause)).into(),
            None => error,
        }
    }
}
