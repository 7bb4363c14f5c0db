//! Classifies errors: the kind of an error of the runtime, and the kind of a handler's error by its
//! causes.

use std::error::Error as StdError;

use idem_client::{Error as Call, ErrorKind};
use tokio_postgres::error::{DbError, SqlState};

use super::{
    DecodeError, Error, HandlerError,
    handler::{Class, Mark},
};
use crate::{boxed::boxed, journal::CallFailed};

impl Error {
    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Decode(_) => ErrorKind::Invalid,
            Self::Client(error) => error.kind(),
            Self::MissingId { .. } => ErrorKind::MissingId,
            Self::Handler(error) if error.is_terminal() => ErrorKind::Terminal,
            Self::Handler(error) | Self::Attempt { error, .. } => error
                .database_kind()
                .filter(|kind| kind.is_retryable())
                .unwrap_or(ErrorKind::Handler),
            Self::Pool(_) => ErrorKind::PoolExhausted,
            Self::TransactionKept => ErrorKind::Terminal,
            Self::LeaseLost => ErrorKind::NotClaimed,
            Self::SourceEnded(_)
            | Self::WorkerPanicked(_)
            | Self::Policy(_)
            | Self::Unexpected(_) => ErrorKind::Other,
        }
    }

    /// Returns whether running the whole transaction again, including its claim, can succeed.
    ///
    /// Returns true also after an ambiguous commit: if that commit took effect, the claim of the
    /// next run returns a duplicate.
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }
}

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
            // The error of a function of `idem_client` that the handler has called itself.
            if let Some(error) = error.downcast_ref::<Call>() {
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

/// Returns the class of the first error in this chain of causes that has a class.
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
        // The handler has misused a transaction, which a function of idem could then not commit.
        if let Some(Call::TransactionEnded | Call::SettingsChanged(_)) = error.downcast_ref() {
            return Class::Terminal;
        }
        // The handler has executed COMMIT. A COMMIT in a procedure that cannot commit also fails
        // with 2D000, in each attempt, so this includes other databases and handlers without a
        // `Tx`.
        if let Some(answer) = error.downcast_ref::<DbError>()
            && *answer.code() == SqlState::INVALID_TRANSACTION_TERMINATION
        {
            return Class::Terminal;
        }
        cause = error.source();
    }
    Class::Failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handled, Message, error::causes};

    #[test]
    fn decode_error_is_terminal_and_other_errors_are_not() {
        let read = || -> Handled {
            Message::new("tests", "no JSON").json::<i64>()?;
            Ok(Vec::new())
        };
        assert!(read().unwrap_err().is_terminal());
        assert!(!HandlerError::from("a bad day").is_terminal());
    }

    /// Goal: a handler that ends a transaction of its own, which `idem_client` then cannot commit,
    /// is not repeated, also in a helper that uses `anyhow`.
    #[test]
    fn ended_transaction_of_the_handlers_own_is_terminal() {
        let ended = || Call::TransactionEnded;
        for error in [
            HandlerError::from(ended()),
            HandlerError::from(Error::from(ended())),
            anyhow::Error::from(ended()).context("while booking").into(),
        ] {
            assert!(error.is_terminal(), "{error:?}");
        }
        assert!(!HandlerError::from(Call::Invalid("no id".into())).is_terminal());
    }

    #[test]
    fn causes_of_a_decode_error_show_no_value() {
        let error = serde_json::from_str::<u64>("\"4111\"").unwrap_err();
        let text = causes(&Error::Decode(error.into()));
        assert!(
            text.contains("invalid type, expected u64 at line 1") && !text.contains("4111"),
            "{text}"
        );
    }
}
