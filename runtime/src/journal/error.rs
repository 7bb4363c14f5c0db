//! The errors of external calls: the error that the call returns, and the error that the handler
//! gets.

use std::fmt;

use time::OffsetDateTime;

use crate::{
    Error,
    boxed::{BoxError as Cause, boxed},
};

/// The error of an external call. `?` converts any error to [`Uncertain`](Self::Uncertain).
///
/// This type does not implement [`std::error::Error`], so that every error converts to it.
#[non_exhaustive]
pub enum CallError {
    /// The external system rejected the call permanently. The rejection is recorded, and the call
    /// is not repeated.
    Refused(Cause),
    /// The call certainly had no effect, for example because nothing was sent. The next attempt
    /// makes the call as if for the first time.
    NotDone(Cause),
    /// It is not known whether the call had an effect. The next attempt decides with
    /// [`OnUnknown`](super::OnUnknown) what to do.
    Uncertain(Cause),
}

impl CallError {
    /// Creates the error of a call that was rejected permanently.
    pub fn refused(cause: impl Into<Cause> + 'static) -> Self {
        Self::Refused(boxed(cause))
    }

    /// Creates the error of a call that certainly had no effect.
    pub fn not_done(cause: impl Into<Cause> + 'static) -> Self {
        Self::NotDone(boxed(cause))
    }
}

impl<E: Into<Cause> + 'static> From<E> for CallError {
    fn from(cause: E) -> Self {
        Self::Uncertain(boxed(cause))
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(cause) => f.debug_tuple("Refused").field(cause).finish(),
            Self::NotDone(cause) => f.debug_tuple("NotDone").field(cause).finish(),
            Self::Uncertain(cause) => f.debug_tuple("Uncertain").field(cause).finish(),
        }
    }
}

/// The reason why a handler gets no result of an external call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallFailed {
    /// The call is never made again: the external system rejected it permanently, in this attempt or
    /// an earlier one, or its result cannot be stored. As the error of a handler it is
    /// [terminal](crate::HandlerError::terminal).
    #[error("step {step:?} failed permanently: {error}")]
    Refused {
        /// The name of the step.
        step: String,
        /// The error of the external system, or why the result cannot be stored.
        error: String,
    },
    /// The call failed and certainly had no effect.
    #[error("step {step:?} failed without effect: {error}")]
    NotDone {
        /// The name of the step.
        step: String,
        /// The error of the call.
        #[source]
        error: Cause,
    },
    /// The call failed, and it is not known whether it had an effect.
    #[error("the result of step {step:?} is not known: {error}")]
    Uncertain {
        /// The name of the step.
        step: String,
        /// The error of the call.
        #[source]
        error: Cause,
    },
    /// An earlier attempt began the call, its result is not known, and
    /// [`OnUnknown::Fail`](super::OnUnknown::Fail) forbids to repeat it. As the error of a handler
    /// it is [terminal](crate::HandlerError::terminal).
    #[error(
        "the result of step {step:?} of an earlier attempt is not known \
         (check whether it had an effect)"
    )]
    Unknown {
        /// The name of the step.
        step: String,
        /// When the earlier attempt began the call.
        begun_at: Option<OffsetDateTime>,
    },
    /// The journal could not be read or written.
    #[error("cannot read or write the journal of step {step:?}: {error}")]
    Journal {
        /// The name of the step.
        step: String,
        /// The error of the journal.
        #[source]
        error: Error,
    },
}

impl CallFailed {
    /// Returns whether every later attempt would fail with the same error.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Unknown { .. })
    }
}
