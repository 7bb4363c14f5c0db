//! Finds the errors that the environment caused. Another message would get the same error.
//!
//! `docs/consumer-runtime.md` has the same list as a table.

use std::{error::Error as StdError, iter::successors};

use deadpool_postgres::PoolError;
use idem_client::{DriverError, Error as Call, ErrorKind};
use tokio_postgres::error::Severity;

use crate::{Error, HandlerError};

/// Returns whether the environment, and not the message, caused the error.
pub(crate) fn caused_by_environment(error: &Error) -> bool {
    match error {
        Error::Handler(error) => handler_error_caused_by_environment(error),
        Error::Client(error) => error.kind() == ErrorKind::ConnectionLost || is_listed_call(error),
        Error::Pool(_) => true,
        // The policies and the code of the program do not fit together.
        Error::Policy(_) => true,
        _ => false,
    }
}

/// Like [`caused_by_environment`], for an error of a handler.
///
/// A connection that the handler lost is an exception: the database could be reached at each
/// attempt, and the handler lost its connection each time. The message may be the cause, for
/// example because its processing takes too long.
pub(super) fn handler_error_caused_by_environment(error: &HandlerError) -> bool {
    if error.is_terminal() {
        return false;
    }
    error.is_unavailable() || is_listed(error.source())
}

/// Returns whether this error, or an error among its causes, is on the list of errors of the
/// environment. [`is_listed_state`] has the SQLSTATEs of the list.
fn is_listed(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<Call>() {
            return is_listed_call(error);
        }
        match error.downcast_ref::<Error>() {
            Some(Error::Client(error)) => return is_listed_call(error),
            Some(error) => return caused_by_environment(error),
            None => {}
        }
        if error.is::<PoolError>() {
            return true;
        }
        // `anyhow` hides the driver error and shows only the server error inside it, so look for
        // both.
        let driver = error.downcast_ref::<tokio_postgres::Error>();
        let server = error
            .downcast_ref()
            .or_else(|| driver.and_then(tokio_postgres::Error::as_db_error));
        if let Some(server) = server {
            return match server.parsed_severity() {
                // An error of this severity ends a session or rejects a login. A lost session is
                // not on the list.
                Some(Severity::Fatal | Severity::Panic) => {
                    ErrorKind::of_server(server) != ErrorKind::ConnectionLost
                }
                // An ERROR of class 08 comes from another server, for example through
                // `postgres_fdw`.
                _ => is_listed_state(server.code().code()),
            };
        }
        if driver.is_some_and(|driver| has_unreachable_cause(driver)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Like [`is_listed`], for the error of a function of `idem_client`.
fn is_listed_call(error: &Call) -> bool {
    match error {
        Call::Database(cause) => is_listed(cause),
        Call::Driver(error) => is_listed_of_driver(error),
        // The message of an ambiguous commit can be redelivered: if the commit took effect, the
        // next delivery is a duplicate.
        Call::AmbiguousCommit(_) | Call::NotReady(_) => true,
        _ => false,
    }
}

/// Like [`is_listed`], for an error of another driver than `tokio-postgres`. A lost session is not
/// on the list, unless the server could not be reached at all.
fn is_listed_of_driver(error: &DriverError) -> bool {
    match error.kind() {
        ErrorKind::AmbiguousCommit | ErrorKind::PoolExhausted => true,
        ErrorKind::ConnectionLost => has_unreachable_cause(error),
        _ => error
            .sqlstate()
            .is_some_and(|state| is_listed_state(state.code())),
    }
}

/// Returns whether a server could not be reached at all, for example a second database of the
/// handler. A connection that is lost after it was established fails with other errors.
fn has_unreachable_cause(error: &(dyn StdError + 'static)) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound};

    // A Unix socket that does not exist fails with `NotFound`.
    let mut causes = successors(error.source(), |cause| (*cause).source());
    let cause = causes.find_map(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| {
        matches!(
            cause.kind(),
            ConnectionRefused | HostUnreachable | NetworkUnreachable | NotFound
        )
    })
}

/// Returns whether a SQLSTATE is on the list of errors of the environment.
fn is_listed_state(state: &str) -> bool {
    match state {
        // query_canceled: the message may be the cause, because its statement takes longer than
        // `statement_timeout`.
        "57014" => false,
        // read_only_sql_transaction, and a database that does not exist.
        "25006" | "3D000" => true,
        // invalid_sql_statement_name: a pooler or a handler has dropped the prepared statements of
        // the connection.
        "26000" => true,
        // A missing grant, table, function, schema or column: the deployment is not complete.
        "42501" | "42P01" | "42883" | "42703" | "3F000" => true,
        // data_corrupted: a row of idem's state is damaged.
        "XX001" => true,
        // Connection, authorization, resources (a full disk, connections, memory), the operator,
        // and the system, which includes versions of library and SQL that do not match.
        state => ["08", "28", "53", "57", "58"]
            .iter()
            .any(|class| state.starts_with(class)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_sqlstate_is_environmental_and_others_are_not() {
        for state in [
            "08006", "28P01", "53100", "57P03", "58000", "58030", "25006", "42501", "42P01",
            "42883", "3F000", "26000", "XX001",
        ] {
            assert!(is_listed_state(state), "{state}");
        }
        for state in [
            "57014", "23505", "22P02", "40001", "42601", "55000", "P0001", "XX000",
        ] {
            assert!(!is_listed_state(state), "{state}");
        }
    }

    #[tokio::test]
    async fn unreachable_database_is_environmental() {
        let connecting =
            tokio_postgres::connect("host=127.0.0.1 port=1 user=none", tokio_postgres::NoTls);
        let error = connecting.await.err().unwrap();
        let error = Error::from(error);
        assert!(caused_by_environment(&Error::Handler(HandlerError::from(
            error
        ))));
    }

    /// Goal: an error of a function of `idem_client` that the handler called itself is classified
    /// like an error of the runtime, also in a helper that uses `anyhow`.
    #[tokio::test]
    async fn error_of_a_call_of_the_handler_is_classified() {
        let connecting =
            tokio_postgres::connect("host=127.0.0.1 port=1 user=none", tokio_postgres::NoTls);
        let cause = std::sync::Arc::new(connecting.await.err().unwrap());
        let error = HandlerError::from(Call::AmbiguousCommit(cause));
        assert_eq!(error.database_kind(), Some(ErrorKind::AmbiguousCommit));
        assert!(caused_by_environment(&Error::Handler(error)));

        let invalid = || Call::Invalid("a destination must not be empty".into());
        for error in [
            HandlerError::from(invalid()),
            anyhow::Error::from(invalid()).into(),
        ] {
            assert_eq!(error.database_kind(), Some(ErrorKind::Invalid));
            assert!(!caused_by_environment(&Error::Handler(error)));
        }
    }

    #[test]
    fn unavailable_api_is_environmental_and_rejection_is_not() {
        let down = HandlerError::unavailable("the payment provider returned 503");
        assert!(caused_by_environment(&Error::Handler(down)));
        assert!(!caused_by_environment(&Error::Handler("a bad day".into())));
        assert!(!caused_by_environment(&Error::Handler(
            HandlerError::terminal("no such order")
        )));
    }

    /// Goal: an exhausted pool of the handler's own is environmental, also in a helper that uses
    /// `anyhow`.
    #[test]
    fn exhausted_pool_is_environmental_through_anyhow() {
        let timeout = || PoolError::Timeout(deadpool_postgres::TimeoutType::Wait);
        for (name, error) in [
            ("pool", HandlerError::from(timeout())),
            ("pool in anyhow", anyhow::Error::from(timeout()).into()),
            (
                "error in anyhow",
                anyhow::Error::from(Error::from(timeout())).into(),
            ),
            (
                "context",
                anyhow::Error::from(timeout())
                    .context("while booking")
                    .into(),
            ),
        ] {
            assert!(caused_by_environment(&Error::Handler(error)), "{name}");
        }
    }

    /// Goal: an error of sqlx, or of another driver, is classified like the same error of
    /// `tokio-postgres`.
    #[test]
    fn error_of_another_driver_is_classified() {
        use std::io;

        let of_server = |state| DriverError::of_server(state, "", None, false, "source");
        let lost = |cause: io::ErrorKind| {
            DriverError::of_driver(ErrorKind::ConnectionLost, io::Error::from(cause))
        };
        for (error, kind, is_listed) in [
            (of_server("53300"), ErrorKind::PoolExhausted, true),
            (of_server("42501"), ErrorKind::NotGranted, true),
            (of_server("40001"), ErrorKind::Conflict, false),
            (of_server("23505"), ErrorKind::Other, false),
            (
                lost(io::ErrorKind::UnexpectedEof),
                ErrorKind::ConnectionLost,
                false,
            ),
            (
                lost(io::ErrorKind::ConnectionRefused),
                ErrorKind::ConnectionLost,
                true,
            ),
            (
                lost(io::ErrorKind::UnexpectedEof).of_commit(),
                ErrorKind::AmbiguousCommit,
                true,
            ),
        ] {
            let error = HandlerError::from(idem_client::Error::from(error));
            assert_eq!(error.database_kind(), Some(kind));
            assert_eq!(
                caused_by_environment(&Error::Handler(error)),
                is_listed,
                "{kind:?}"
            );
        }
        let lost = idem_client::Error::from(lost(io::ErrorKind::UnexpectedEof));
        assert!(caused_by_environment(&Error::from(lost)));
    }
}
