//! Keeps a message in the broker or in the database, when the broker may not redeliver it.

use std::{future::Future, pin::pin, time::Duration};

use futures_util::future::{Either, select};
use tokio::time::timeout;

use crate::{Error, transport::TransportError};

/// The system that has kept the message.
#[derive(Debug)]
pub(super) enum KeptBy {
    Broker,
    /// `is_new` is false when the message is a dead letter already or was processed.
    Database {
        is_new: bool,
    },
}

/// Keeps the message in the broker, or in the database when the broker returns an error. When the
/// broker has not replied after `limit`, this function tries both at the same time.
///
/// Errors: the error of the database when neither keeps the message.
pub(super) async fn keep_somewhere(
    broker: impl Future<Output = Result<(), TransportError>>,
    database: impl Future<Output = Result<bool, Error>>,
    limit: Duration,
) -> Result<KeptBy, Error> {
    let (mut broker, database) = (pin!(broker), pin!(database));
    let by_database = |is_new| KeptBy::Database { is_new };
    match timeout(limit, broker.as_mut()).await {
        Ok(Ok(())) => return Ok(KeptBy::Broker),
        Ok(Err(_)) => return database.await.map(by_database),
        Err(_) => {}
    }
    match select(broker, database).await {
        Either::Left((Ok(()), _)) => Ok(KeptBy::Broker),
        Either::Left((Err(_), database)) => database.await.map(by_database),
        Either::Right((Ok(is_new), _)) => Ok(by_database(is_new)),
        Either::Right((Err(error), broker)) => match broker.await {
            Ok(()) => Ok(KeptBy::Broker),
            Err(_) => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    /// Returns `output` after this number of seconds. The clock of these tests is paused: it
    /// advances at once to the next instant that a task waits for.
    async fn after<T>(seconds: u64, output: T) -> T {
        sleep(Duration::from_secs(seconds)).await;
        output
    }

    fn database_error() -> Error {
        Error::Invalid("no room".into())
    }

    fn broker_error() -> Result<(), TransportError> {
        Err("no such exchange".into())
    }

    /// I4: a message is kept when the broker confirms late and the database returns an error.
    #[tokio::test(start_paused = true)]
    async fn i4_slow_broker_keeps_message_without_database() {
        for database_takes in [0, 5] {
            let database = after(database_takes, Err(database_error()));
            let keeper = keep_somewhere(after(2, Ok(())), database, LIMIT).await;
            assert!(matches!(keeper, Ok(KeptBy::Broker)), "{keeper:?}");
        }
    }

    /// I4: a message is kept in the database when the broker does not reply.
    #[tokio::test(start_paused = true)]
    async fn i4_database_keeps_message_of_silent_broker() {
        let keeper = keep_somewhere(pending(), ready(Ok(true)), LIMIT).await;
        assert!(
            matches!(keeper, Ok(KeptBy::Database { is_new: true })),
            "{keeper:?}"
        );
    }

    /// I4: a message is kept in the database when the broker returns an error, early or late.
    #[tokio::test(start_paused = true)]
    async fn i4_database_keeps_message_rejected_by_broker() {
        for broker_takes in [0, 2] {
            let keeper = keep_somewhere(
                after(broker_takes, broker_error()),
                after(3, Ok(true)),
                LIMIT,
            )
            .await;
            assert!(
                matches!(keeper, Ok(KeptBy::Database { is_new: true })),
                "{keeper:?}"
            );
        }
    }

    /// The error is returned when neither the broker nor the database keeps the message.
    #[tokio::test(start_paused = true)]
    async fn message_kept_by_neither_is_an_error() {
        for (broker_takes, database_takes) in [(0, 0), (2, 0), (2, 5)] {
            let database = after(database_takes, Err(database_error()));
            let keeper = keep_somewhere(after(broker_takes, broker_error()), database, LIMIT).await;
            assert!(keeper.is_err(), "{keeper:?}");
        }
    }
}
