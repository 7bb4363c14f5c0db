//! How a call fails: what the other side says, and what the handler is told.

use std::fmt;

use time::OffsetDateTime;

use crate::{
    Error,
    boxed::{BoxError as Cause, boxed},
};

/// What became of a question that got no answer. `?` takes any error as [`Unheard`](Self::Unheard).
///
/// It is not a [`std::error::Error`] itself, so that every error converts into it.
pub enum CallError {
    /// The other side refused, and always will: that is recorded, and nobody asks again.
    Refused(Cause),
    /// It certainly had no effect, since nothing was sent for example: the next attempt asks as if
    /// for the first time.
    NotDone(Cause),
    /// Nobody knows whether it had an effect: the next attempt is told so.
    Unheard(Cause),
}

impl CallError {
    /// It was refused for good.
    pub fn refused(cause: impl Into<Cause> + 'static) -> Self {
        Self::Refused(boxed(cause))
    }

    /// It certainly had no effect.
    pub fn not_done(cause: impl Into<Cause> + 'static) -> Self {
        Self::NotDone(boxed(cause))
    }
}

impl<E: Into<Cause> + 'static> From<E> for CallError {
    fn from(cause: E) -> Self {
        Self::Unheard(boxed(cause))
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(cause) => f.debug_tuple("Refused").field(cause).finish(),
            Self::NotDone(cause) => f.debug_tuple("NotDone").field(cause).finish(),
            Self::Unheard(cause) => f.debug_tuple("Unheard").field(cause).finish(),
        }
    }
}

/// Why a step has no answer for its handler.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallFailed {
    /// The other side refused for good, in this attempt or an earlier one. As the error of a
    /// handler it is [terminal](crate::HandlerError::terminal).
    #[error("step {step:?} was refused: {error}")]
    Refused {
        /// The step.
        step: String,
        /// What it said.
        error: String,
    },
    /// It failed, and certainly had no effect.
    #[error("step {step:?} was not done: {error}")]
    NotDone {
        /// The step.
        step: String,
        /// Why.
        #[source]
        error: Cause,
    },
    /// It was asked, and nobody knows whether it had an effect.
    #[error("step {step:?} was asked and not heard: {error}")]
    Unheard {
        /// The step.
        step: String,
        /// Why.
        #[source]
        error: Cause,
    },
    /// An earlier attempt began it and never heard, and [`OnUnknown::Fail`](super::OnUnknown::Fail)
    /// asks nobody. As the error of a handler it is [terminal](crate::HandlerError::terminal).
    #[error(
        "step {step:?} was begun before and never heard: somebody has to look whether it was done"
    )]
    Unknown {
        /// The step.
        step: String,
        /// When.
        begun_at: Option<OffsetDateTime>,
    },
    /// The journal cannot be read or written.
    #[error("the journal of step {step:?}: {error}")]
    Journal {
        /// The step.
        step: String,
        /// Why.
        #[source]
        error: Error,
    },
}

impl CallFailed {
    /// Whether every later attempt would meet the same.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Unknown { .. })
    }
}
