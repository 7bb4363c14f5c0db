//! Classifies the errors of handlers by their causes.

use std::error::Error as StdError;

use idem_client::ErrorKind;
use tokio_postgres::error::DbError;

use super::{
    DecodeError, Error, HandlerError,
    handler::{Class, Mark},
};
use crate::{boxed::boxed, journal::CallFailed};

impl HandlerError {
    /// Returns the kind of the database error that caused this error; `None` if there is no such
    /// cause.
    ///
    /// A lost conflict or a lost connection can be retried at once.
    pub fn database_kind(&self) -> Option<ErrorKind> {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(self.source());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handled, Message};

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
