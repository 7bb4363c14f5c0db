//! Describes an error with all its causes, without a value of a payload.

use std::{error::Error, sync::Arc};

use tokio_postgres::error::{DbError, SqlState};

use super::{quoted_without_value, without_value};

/// An error whose text describes its causes too.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Described {
    pub text: String,
    pub source: Box<dyn Error + Send + Sync>,
}

/// Describes a driver error with its cause, in one line. The text of the error itself is only "db
/// error", or omits why a connection failed.
pub fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => describe_server(server),
        None => causes(error, |_| false),
    }
}

/// Returns the message and the hint of the server, without the detail, which can contain a row.
fn describe_server(error: &DbError) -> String {
    server_text(error.code(), error.message(), error.hint())
}

/// Returns the text of an error of the server.
pub(crate) fn server_text(state: &SqlState, message: &str, hint: Option<&str>) -> String {
    let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}: {message}{hint}", state.code())
}

/// Describes an error of PostgreSQL or of serde, including its causes. The text of such an error
/// itself contains too little information, or a value of the payload. Returns `None` for all other
/// errors.
fn describe_known(error: &(dyn Error + 'static)) -> Option<String> {
    let driver = error.downcast_ref::<tokio_postgres::Error>();
    let shared = error
        .downcast_ref::<Arc<tokio_postgres::Error>>()
        .map(|shared| &**shared);
    let server = driver
        .or(shared)
        .and_then(tokio_postgres::Error::as_db_error)
        .or_else(|| error.downcast_ref());
    let described = || error.downcast_ref::<Described>().map(Described::to_string);
    server.map(describe_server).or_else(described).or_else(|| {
        error
            .downcast_ref::<serde_json::Error>()
            .map(|error| without_value(error))
    })
}

/// Returns the text of an error, without a value of the payload that it quotes. Every text is
/// searched for such a value, because `anyhow` and `io::Error` hide a parser error inside them, and
/// other errors quote the text of a parser error.
fn shown(error: &(dyn Error + 'static)) -> String {
    let text = error.to_string();
    quoted_without_value(&text).unwrap_or(text)
}

/// Returns an error and all its causes in one line, without a value of a payload.
///
/// A cause is left out if the text before it already contains it, or if `is_skipped` returns true
/// for it.
pub fn causes(
    error: &(dyn Error + 'static),
    is_skipped: impl Fn(&(dyn Error + 'static)) -> bool,
) -> String {
    let mut text = String::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        if is_skipped(error) {
            cause = error.source();
            continue;
        }
        let known = describe_known(error);
        cause = error.source().filter(|_| known.is_none());
        let next = known.unwrap_or_else(|| shown(error));
        if text.is_empty() {
            text = next;
        } else if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot resolve: {0}")]
    struct Inner(#[source] io::Error);

    #[test]
    fn each_cause_is_shown_once() {
        let error = Outer(Inner(io::Error::other("no such host")));
        assert_eq!(
            causes(&error, |_| false),
            "cannot connect: cannot resolve: no such host"
        );
    }

    #[test]
    fn skipped_cause_is_not_shown() {
        let error = Outer(Inner(io::Error::other("no such host")));
        assert_eq!(
            causes(&error, |error| error.is::<Inner>()),
            "cannot connect: no such host"
        );
    }
}
