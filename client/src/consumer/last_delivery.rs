//! A message that its broker may not deliver again: the broker or the database keeps it.

use std::{future::Future, pin::pin, time::Duration};

use futures_util::future::{Either, select};
use tokio::time::timeout;

use crate::{Error, TransportError};

/// What has kept it.
#[derive(Debug)]
pub(super) enum Keeper {
    Broker,
    /// `is_new` is false when it is a dead letter already, or was processed.
    Database {
        is_new: bool,
    },
}

/// The broker keeps the message, or the database when the broker refuses. When the broker is slow,
/// both try.
///
/// Errors: that of the database, when neither keeps it.
pub(super) async fn keep_somewhere(
    broker: impl Future<Output = Result<(), TransportError>>,
    database: impl Future<Output = Result<bool, Error>>,
    patience: Duration,
) -> Result<Keeper, Error> {
    let (mut broker, database) = (pin!(broker), pin!(database));
    let by_database = |is_new| Keeper::Database { is_new };
    match timeout(patience, broker.as_mut()).await {
        Ok(Ok(())) => return Ok(Keeper::Broker),
        Ok(Err(_)) => return database.await.map(by_database),
        Err(_) => {}
    }
    match select(broker, database).await {
        Either::Left((Ok(()), _)) => Ok(Keeper::Broker),
        Either::Left((Err(_), database)) => database.await.map(by_database),
        Either::Right((Ok(is_new), _)) => Ok(by_database(is_new)),
        Either::Right((Err(error), broker)) => match broker.await {
            Ok(()) => Ok(Keeper::Broker),
            Err(_) => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// The clock of these tests is stopped, and jumps to the next moment that is waited for.
    async fn after<T>(seconds: u64, answer: T) -> T {
        sleep(Duration::from_secs(seconds)).await;
        answer
    }

    fn refused() -> Error {
        Error::Invalid("no room".into())
    }

    fn refusal() -> Result<(), TransportError> {
        Err("no such exchange".into())
    }

    #[tokio::test(start_paused = true)]
    async fn i4_slow_broker_keeps_what_the_database_cannot() {
        for database_takes in [0, 5] {
            let database = after(database_takes, Err(refused()));
            let keeper = keep_somewhere(after(2, Ok(())), database, PATIENCE).await;
            assert!(matches!(keeper, Ok(Keeper::Broker)), "{keeper:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i4_database_keeps_what_a_silent_broker_does_not() {
        let keeper = keep_somewhere(pending(), ready(Ok(true)), PATIENCE).await;
        assert!(
            matches!(keeper, Ok(Keeper::Database { is_new: true })),
            "{keeper:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn i4_database_keeps_what_the_broker_refuses() {
        for broker_takes in [0, 2] {
            let keeper =
                keep_somewhere(after(broker_takes, refusal()), after(3, Ok(true)), PATIENCE).await;
            assert!(
                matches!(keeper, Ok(Keeper::Database { is_new: true })),
                "{keeper:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn message_that_neither_keeps_is_an_error() {
        for (broker_takes, database_takes) in [(0, 0), (2, 0), (2, 5)] {
            let database = after(database_takes, Err(refused()));
            let keeper = keep_somewhere(after(broker_takes, refusal()), database, PATIENCE).await;
            assert!(keeper.is_err(), "{keeper:?}");
        }
    }
}
