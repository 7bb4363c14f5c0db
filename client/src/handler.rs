//! What a user writes: the work on one message, and what it says when it fails.

use std::{error::Error as StdError, fmt, future::Future};

use tokio_postgres::error::DbError;

use crate::{
    DecodeError, Effect, Error, ErrorKind, Message, Tx, boxed::boxed, error::causes,
    journal::CallFailed,
};

/// What a handler answers: the effects to record, or why it failed.
pub type Handled = Result<Vec<Effect>, HandlerError>;

/// The work on one message, in the transaction that claimed it.
///
/// A closure is one: `|tx: Tx, message: Message| async move { ...; Ok(vec![effect]) }`.
pub trait Handler: Send + Sync + 'static {
    /// Does the work. Drops `tx` before it answers: whoever keeps it gets
    /// [`Error::TransactionKept`], and a rollback.
    fn handle(&self, tx: Tx, message: Message) -> impl Future<Output = Handled> + Send;
}

impl<F, Fut> Handler for F
where
    F: Fn(Tx, Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send,
{
    fn handle(&self, tx: Tx, message: Message) -> impl Future<Output = Handled> + Send {
        self(tx, message)
    }
}

/// The work on one message without a transaction and without a lease: see
/// [`Idem::process_checked`](crate::Idem::process_checked).
///
/// A closure is one: `|message: Message| async move { ...; Ok(vec![effect]) }`.
pub trait CheckedHandler: Send + Sync + 'static {
    /// Does the work, which is claimed when it has succeeded.
    fn handle(&self, message: Message) -> impl Future<Output = Handled> + Send;
}

impl<F, Fut> CheckedHandler for F
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send,
{
    fn handle(&self, message: Message) -> impl Future<Output = Handled> + Send {
        self(message)
    }
}

/// Why a handler failed: any error, which `?` takes, a [terminal](Self::terminal) one, or an
/// [unavailable](Self::unavailable) dependency. [`Error::Decode`], as [`Message::json`] returns it,
/// is terminal by itself, and so is a call that was [refused for good](CallFailed::is_terminal).
///
/// It is not a [`std::error::Error`] itself, so that every error converts into it.
pub struct HandlerError {
    source: Box<dyn StdError + Send + Sync>,
    class: Class,
}

/// What an error says about the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Another attempt may succeed.
    Failed,
    /// No attempt can succeed.
    Terminal,
    /// Nothing: another message would have met the error, too.
    Unavailable,
}

impl HandlerError {
    /// An error that no new attempt can mend: the message is refused at once.
    pub fn terminal(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self::of_class(Class::Terminal, boxed(source))
    }

    /// Something that the handler needs is down, such as an API. A [`Consumer`](crate::Consumer)
    /// pauses the destination, and the message uses up no attempt.
    pub fn unavailable(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self::of_class(Class::Unavailable, boxed(source))
    }

    fn of_class(class: Class, source: Box<dyn StdError + Send + Sync>) -> Self {
        Self { source, class }
    }

    /// Whether no new attempt can mend it.
    pub fn is_terminal(&self) -> bool {
        self.class == Class::Terminal
    }

    /// Whether something is down that the handler needs.
    pub fn is_unavailable(&self) -> bool {
        self.class == Class::Unavailable
    }

    /// What the handler failed with.
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// This error as a [`std::error::Error`], for code that is no handler, such as a helper that
    /// returns `anyhow::Result`. As the error of a handler it says the same about the message
    /// again.
    pub fn into_error(self) -> HandlerFailed {
        HandlerFailed(Mark {
            source: self.source,
            class: self.class,
        })
    }

    /// The kind, when the database is behind it: a lost conflict or connection can be retried at
    /// once.
    pub fn database_kind(&self) -> Option<ErrorKind> {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(&*self.source);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<Error>() {
                return Some(error.kind());
            }
            if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
                return Some(ErrorKind::of(error));
            }
            // An `anyhow::Error` shows the cause of what it was made from, but not that itself.
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

/// The class of the first of these causes that has one.
///
/// An `anyhow::Error` that was boxed before it came here hides what it was made from, and shows its
/// causes. So a [`Mark`] is a cause.
fn class_of(error: &(dyn StdError + 'static)) -> Class {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(mark) = error.downcast_ref::<Mark>() {
            return mark.class;
        }
        // What a call failed for says nothing about the message unless the call was refused.
        if let Some(failed) = error.downcast_ref::<CallFailed>() {
            return if failed.is_terminal() {
                Class::Terminal
            } else {
                Class::Failed
            };
        }
        // A payload that cannot be read today cannot be read tomorrow.
        if error.is::<DecodeError>() {
            return Class::Terminal;
        }
        cause = error.source();
    }
    Class::Failed
}

/// The class of an error, between the error that a user made and its cause.
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

/// An error that no new attempt can mend, for a pipeline of services whose errors are boxed: it
/// becomes a [terminal](HandlerError::terminal) [`HandlerError`], which is no [`std::error::Error`]
/// and cannot be boxed itself.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.source)]
pub struct TerminalError(#[source] Mark);

impl TerminalError {
    /// Says of an error that no new attempt can mend it.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self(HandlerError::terminal(source).into_error().0)
    }
}

/// An [unavailable](HandlerError::unavailable) dependency, for a pipeline of services whose errors
/// are boxed.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.source)]
pub struct UnavailableError(#[source] Mark);

impl UnavailableError {
    /// Says of an error that another message would have met it, too.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>> + 'static) -> Self {
        Self(HandlerError::unavailable(source).into_error().0)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

/// The error and all its causes.
impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&causes(&*self.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_cannot_be_read_is_refused_at_once_and_other_errors_are_not() {
        let read = || -> Handled {
            Message::new("tests", "no JSON").json::<i64>()?;
            Ok(Vec::new())
        };
        assert!(read().unwrap_err().is_terminal());
        assert!(!HandlerError::from("a bad day").is_terminal());
    }
}
