//! Messages whose attempts are used up: listing them, trying them again, forwarding and discarding
//! them.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio_postgres::{
    GenericClient, Row,
    types::{Json, Type},
};
use tracing::Instrument;
use uuid::Uuid;

use crate::{Destination, Error, MessageId, lease::Burial, redacted::Length, span, sql};

/// A message whose attempts are used up, or that failed for good.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The id that it is known by.
    pub id: MessageId,
    /// When it died, by the server's clock.
    pub died_at: OffsetDateTime,
    /// When it was received.
    pub received_at: OffsetDateTime,
    /// How often it was tried.
    pub attempt: i32,
    /// Every failure, the oldest first.
    pub failures: Vec<Failure>,
    /// Messages of one key keep their order.
    pub key: Option<String>,
    /// What kind of message it is.
    pub message_type: Option<String>,
    /// The payload; JSON is its UTF-8 text.
    pub payload: Vec<u8>,
    /// How to take the payload.
    pub content_type: String,
    /// The headers.
    pub headers: Map<String, Value>,
}

/// Without the payload, which may hold what no log may show.
impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("died_at", &self.died_at)
            .field("received_at", &self.received_at)
            .field("attempt", &self.attempt)
            .field("failures", &self.failures)
            .field("key", &self.key)
            .field("message_type", &self.message_type)
            .field("payload", &Length(self.payload.len()))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .finish()
    }
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// When, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The how manyth it was.
    pub attempt: i32,
    /// Why.
    pub error: String,
}

impl TryFrom<&Row> for DeadLetter {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        let Json(failures) = row.try_get("errors")?;
        let headers: Option<Json<_>> = row.try_get("headers")?;
        Ok(Self {
            id: MessageId::text(row.try_get::<_, String>("id")?)?,
            died_at: row.try_get("died_at")?,
            received_at: row.try_get("received_at")?,
            attempt: row.try_get("attempt")?,
            failures,
            key: row.try_get("key")?,
            message_type: row.try_get("type")?,
            payload: row.try_get("payload")?,
            content_type: row.try_get("content_type")?,
            headers: headers.map(|Json(headers)| headers).unwrap_or_default(),
        })
    }
}

/// Keeps a message of a broker, which no lease holds, as a dead letter. Acknowledge it after the
/// commit.
///
/// False: it is a dead letter already, or it was processed, and may be acknowledged, too. A message
/// without an id gets a UUID, a hash of its headers and payload, so that it has one letter however
/// often it is delivered. Of a long error its beginning is kept.
///
/// Errors: [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when another process holds the
/// message or it waits for its next attempt, SQLSTATE 53400 when the destination has
/// `idem.max_dead_letters` already, 54000 for a payload of more than 64 MiB. Then the message has
/// to stay at its broker. The transaction must be READ COMMITTED.
pub async fn reject(
    client: &impl GenericClient,
    id: Option<&MessageId>,
    destination: &Destination,
    payload: &[u8],
    error: &str,
    with: &Burial,
) -> Result<bool, Error> {
    let none: Option<&str> = None;
    let (id, error) = (
        id.map_or((&none as _, Type::TEXT), MessageId::parameter),
        sql::kept(error),
    );
    let row = client
        .query_typed_one(
            "SELECT idem_reject($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                id,
                destination.parameter(),
                (&payload, Type::BYTEA),
                (&error, Type::TEXT),
                (&with.headers, Type::JSONB),
                (&with.key, Type::TEXT),
                (&with.message_type, Type::TEXT),
                (&with.content_type, Type::TEXT),
            ],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// The dead letters of a destination whose last error matches a pattern of LIKE (`%` is all), the
/// oldest first and at most so many. Needs the role of an operator or an admin.
pub async fn list(
    client: &impl GenericClient,
    destination: &Destination,
    error_like: &str,
    max_messages: i64,
) -> Result<Vec<DeadLetter>, Error> {
    let rows = client
        .query_typed(
            "SELECT id, died_at, received_at, attempt, errors, key, type, payload, content_type, headers FROM idem.dead_letters \
             WHERE destination = $1 AND last_error LIKE $2 ORDER BY seq LIMIT $3",
            &[
                destination.parameter(),
                (&error_like, Type::TEXT),
                (&max_messages, Type::INT8),
            ],
        )
        .await?;
    rows.iter().map(DeadLetter::try_from).collect()
}

/// Lets a dead letter be tried again, with all its attempts; false when there is none of this
/// identity, or it was handled meanwhile.
pub async fn requeue(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_requeue($1, $2)",
            &[id.parameter(), destination.parameter()],
        )
        .instrument(span::of_message("requeue", id, destination))
        .await?;
    Ok(row.try_get(0)?)
}

/// Lets those dead letters of a destination be tried again whose last error matches a pattern of
/// LIKE, the oldest first and at most so many; answers how many these were.
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

/// Gives a dead letter up; false when there is none of this identity. It counts as handled from now
/// on: should it be sent again, it is a duplicate.
pub async fn discard(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_discard($1, $2)",
            &[id.parameter(), destination.parameter()],
        )
        .instrument(span::of_message("discard", id, destination))
        .await?;
    Ok(row.try_get(0)?)
}

/// Gives those dead letters of a destination up whose last error matches a pattern of LIKE, the
/// oldest first and at most so many; answers how many these were.
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

/// Sends a dead letter to a topic, as an effect of its message: the way back to a broker, or to
/// another consumer. The message counts as handled from now on.
///
/// Returns the message id of the effect; `None` when there is no letter of this identity. Consumers
/// process the effect as a new message.
pub async fn forward(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    topic: &str,
) -> Result<Option<Uuid>, Error> {
    let parameters = [
        id.parameter(),
        destination.parameter(),
        (&topic as _, Type::TEXT),
    ];
    let row = client
        .query_typed_one("SELECT idem_forward($1, $2, $3)", &parameters)
        .instrument(span::of_message("forward", id, destination))
        .await?;
    Ok(row.try_get(0)?)
}

/// Sends those dead letters of a destination to a topic whose last error matches a pattern of LIKE,
/// the oldest first and at most so many. Returns how many, without those that another transaction
/// holds.
pub async fn forward_all(
    client: &impl GenericClient,
    destination: &Destination,
    topic: &str,
    error_like: &str,
    max_messages: i32,
) -> Result<i32, Error> {
    let parameters = [
        destination.parameter(),
        (&topic as _, Type::TEXT),
        (&error_like, Type::TEXT),
        (&max_messages, Type::INT4),
    ];
    let row = client
        .query_typed_one("SELECT idem_forward_all($1, $2, $3, $4)", &parameters)
        .await?;
    Ok(row.try_get(0)?)
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
