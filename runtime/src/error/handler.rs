//! The error of a handler, and what it means for the message.

use std::{error::Error as StdError, fmt};

use idem_client::redacted;

use crate::boxed::boxed;

/// The error of a handler: any error, which `?` converts, a [terminal](Self::terminal) error, or an
/// [unavailable](Self::unavailable) dependency.
///
/// [`Error::Decode`](crate::Error::Decode), which [`Message::json`](crate::Message::json) returns,
/// is terminal by itself, and so is an external call that was [rejected for
/// good](crate::journal::CallFailed::is_terminal).
///
/// This type does not implement [`std::error::Error`], so that every error converts into it.
pub struct HandlerError {
    source: Box<dyn StdError + Send + Sync>,
    class: Class,
}

/// What an error means for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Another attempt may succeed.
    Failed,
    /// No attempt can succeed.
    Terminal,
    /// The message is not the cause: another message would get the error too.
    Unavailable,
}

impl HandlerError {
    /// Creates an error that no other attempt can correct. The message is rejected at once.
    pub fn terminal(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self::of_class(Class::Terminal, boxed(source))
    }

    /// Creates an error for a dependency of the handler that is not available, such as an API.
    ///
    /// A [`Consumer`](crate::Consumer) pauses the destination, and the message uses up no attempt.
    pub fn unavailable(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self::of_class(Class::Unavailable, boxed(source))
    }

    pub(super) fn of_class(class: Class, source: Box<dyn StdError + Send + Sync>) -> Self {
        Self { source, class }
    }

    /// Returns whether no other attempt can correct the error.
    pub fn is_terminal(&self) -> bool {
        self.class == Class::Terminal
    }

    /// Returns whether a dependency of the handler is not available.
    pub fn is_unavailable(&self) -> bool {
        self.class == Class::Unavailable
    }

    /// Returns the error that the handler failed with.
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// Converts this error into a [`std::error::Error`], for code that boxes its errors, such as a
    /// helper that returns `anyhow::Result`.
    ///
    /// If the result is converted back into a [`HandlerError`], it is terminal or unavailable as
    /// before.
    pub fn into_error(self) -> HandlerFailed {
        HandlerFailed(Mark {
            source: self.source,
            class: self.class,
        })
    }
}

/// The class of an error, stored as an additional cause between a wrapper and the user's error.
#[derive(Debug)]
pub(super) struct Mark {
    source: Box<dyn StdError + Send + Sync>,
    pub(super) class: Class,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.class {
            Class::Failed => "another attempt may succeed",
            Class::Terminal => "no attempt can succeed",
            Class::Unavailable => "a dependency is not available",
        })
    }
}

impl StdError for Mark {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

/// A [`HandlerError`] as a [`std::error::Error`]: see [`HandlerError::into_error`].
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.source)]
pub struct HandlerFailed(#[source] Mark);

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

/// Shows the error and all its causes.
impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&causes(&*self.source))
    }
}

/// Returns an error and all its causes in one line, without a value of a payload. The mark of a
/// handler's error is not shown.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    redacted::causes(error, |error| error.is::<Mark>())
}
