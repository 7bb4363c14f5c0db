//! Messages whose attempts are used up: looking at them, letting them try again, giving them up.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;
use tracing::Instrument;

use crate::{Destination, Error, MessageId, span};

/// Lets a dead letter be tried again, with all its attempts; false when there is none of this identity, or it was handled meanwhile.
pub async fn requeue(client: &impl GenericClient, id: &MessageId, destination: &Destination) -> Result<bool, Error> {
    let row = client
        .query_typed_one("SELECT idem_requeue($1, $2)", &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("requeue", id, destination))
        .await?;
    Ok(row.try_get(0)?)
}

/// Lets those dead letters of a destination be tried again whose last error matches a pattern of LIKE, the oldest first and at most so
/// many; answers how many these were.
pub async fn requeue_all(
    client: &impl GenericClient,
    destination: &Destination,
    error_like: &str,
    max_messages: i32,
) -> Result<i32, Error> {
    all(
        client,
        "SELECT idem_requeue_all($1, $2, $3)",
        destination,
        error_like,
        max_messages,
    )
    .await
}

/// Gives a dead letter up; false when there is none of this identity. It counts as handled from now on: should it be sent again, it is a
/// duplicate.
pub async fn discard(client: &impl GenericClient, id: &MessageId, destination: &Destination) -> Result<bool, Error> {
    let row = client
        .query_typed_one("SELECT idem_discard($1, $2)", &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("discard", id, destination))
        .await?;
    Ok(row.try_get(0)?)
}

/// Gives those dead letters of a destination up whose last error matches a pattern of LIKE, the oldest first and at most so many;
/// answers how many these were.
pub async fn discard_all(
    client: &impl GenericClient,
    destination: &Destination,
    error_like: &str,
    max_messages: i32,
) -> Result<i32, Error> {
    all(
        client,
        "SELECT idem_discard_all($1, $2, $3)",
        destination,
        error_like,
        max_messages,
    )
    .await
}

async fn all(
    client: &impl GenericClient,
    sql: &str,
    destination: &Destination,
    error_like: &str,
    max_messages: i32,
) -> Result<i32, Error> {
    let parameters = [
        destination.parameter(),
        (&error_like, Type::TEXT),
        (&max_messages, Type::INT4),
    ];
    Ok(client.query_typed_one(sql, &parameters).await?.try_get(0)?)
}
