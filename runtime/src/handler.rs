//! Handlers, which are the user's code for one message, and their errors.
//!
//! A handler is a function of two arguments: what it works with, and the message. It works with a
//! transaction ([`Tx`](crate::Tx)) or with a lease ([`LeaseContext`](crate::lease::LeaseContext)).
//! A function with other arguments becomes a handler with [`extract`](crate::extract()).
//!
//! There is no trait for handlers. The functions that take a handler have the bound
//! `F: Fn(Tx, Message) -> Fut` themselves, because the compiler infers the types of the arguments
//! of a closure from such a bound only. With a trait in its place, `|tx, message|` would need
//! annotations: a trait for functions with any arguments does not determine the arguments, and
//! with a trait that has `Fn(Tx, Message)` as its supertrait, `async |tx, message|` does not
//! compile.

use std::{error::Error as StdError, fmt, future::Future, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::{Effect, ErrorKind};
use tokio_postgres::error::DbError;

pub use crate::error::DecodeError;

use crate::{Error, Message, boxed::boxed, error::causes, journal::CallFailed};

/// The result of a handler: the effects to record, or the error.
pub type Handled = Result<Vec<Effect>, HandlerError>;

/// A handler as a trait object. It works with a `W`.
pub(crate) type ErasedHandler<W> =
    Arc<dyn Fn(W, Message) -> BoxFuture<'static, Handled> + Send + Sync>;

pub(crate) fn erase<W, F, Fut>(handler: F) -> ErasedHandler<W>
where
    F: Fn(W, Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send + 'static,
{
    Arc::new(move |work, message| handler(work, message).boxed())
}

/// The error of a handler: any error, which `?` converts, a [terminal](Self::terminal) error, or an
/// [unavailable](Self::unavailable) dependency.
///
/// [`Error::Decode`], which [`Message::json`] returns, is terminal by itself, and so is an external
/// call that was [rejected for good](CallFailed::is_terminal).
///
/// This type does not implement [`std::error::Error`], so that every error converts into it.
pub struct HandlerError {
    source: Box<dyn StdError + Send + Sync>,
    class: Class,
}

/// What an error means for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
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

    fn of_class(class: Class, source: Box<dyn StdError + Send + Sync>) -> Self {
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

    /// Converts this error into a [`std::error::Error`], for code that is not a handler, such as a
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

    /// Returns the kind of the database error that caused this error; `None` if there is no such
    /// cause.
    ///
    /// A lost conflict or a lost connection can be retried at once.
    pub fn database_kind(&self) -> Option<ErrorKind> {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(&*self.source);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<Error>() {
                return Some(error.kind());
            }
            // A call that the handler made itself.
            if let Some(error) = error.downcast_ref::<idem_client::Error>() {
                return Some(error.kind());
            }
            if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
                return Some(ErrorKind::of(error));
            }
            // An `anyhow::Error` hides its original error and shows only the causes of that error.
            // So the driver error can be hidden, but not the server error inside it.
            if let Some(answer) = error.downcast_ref::<DbError>() {
                return Some(ErrorKind::of_server(answer));
            }
            cause = error.source();
        }
        None
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>> + 'static> From<E> for HandlerError {
    fn from(source: E) -> Self {
        let source = boxed(source);
        Self::of_class(class_of(&*source), source)
    }
}

/// Returns the class of the first of these causes that has a class.
///
/// An `anyhow::Error` that was boxed by the user hides its original error and shows only the causes
/// of that error. So the class is stored in a cause, a [`Mark`].
fn class_of(error: &(dyn StdError + 'static)) -> Class {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(mark) = error.downcast_ref::<Mark>() {
            return mark.class;
        }
        // Do not search the causes of a failed external call. They belong to the call and not to
        // the message.
        if let Some(failed) = error.downcast_ref::<CallFailed>() {
            return if failed.is_terminal() {
                Class::Terminal
            } else {
                Class::Failed
            };
        }
        // A payload that cannot be decoded now can never be decoded.
        if error.is::<DecodeError>() {
            return Class::Terminal;
        }
        cause = error.source();
    }
    Class::Failed
}

/// The class of an error, stored as an additional cause between a wrapper and the user's error.
#[derive(Debug)]
pub(crate) struct Mark {
    source: Box<dyn StdError + Send + Sync>,
    class: Class,
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

/// An error that no other attempt can correct, for a pipeline of services with boxed errors.
///
/// It becomes a [terminal](HandlerError::terminal) [`HandlerError`], which is not a
/// [`std::error::Error`] and so cannot be boxed itself.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.source)]
pub struct TerminalError(#[source] Mark);

impl TerminalError {
    /// Wraps an error that no other attempt can correct.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self(HandlerError::terminal(source).into_error().0)
    }
}

/// An [unavailable](HandlerError::unavailable) dependency, for a pipeline of services with boxed
/// errors.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.source)]
pub struct UnavailableError(#[source] Mark);

impl UnavailableError {
    /// Wraps an error that another message would get too.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self(HandlerError::unavailable(source).into_error().0)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_error_is_terminal_and_other_errors_are_not() {
        let read = || -> Handled {
            Message::new("tests", "no JSON").json::<i64>()?;
            Ok(Vec::new())
        };
        assert!(read().unwrap_err().is_terminal());
        assert!(!HandlerError::from("a bad day").is_terminal());
    }
}
