//! Stores, lists, requeues, forwards and discards dead letters. These are messages that used up
//! their attempts, failed for good or were rejected.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio_postgres::types::{Json, Type};
use tracing::Instrument;
use uuid::Uuid;

use crate::{
    Destination, Error, Executor, MessageId, Row, escape, executor::value,
    lease::DeadLetterContent, redacted::Length, span,
};

/// A message that has used up its attempts, or that failed with a terminal error.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The id under which the message is stored.
    pub id: MessageId,
    /// When the message became a dead letter, by the server's clock.
    pub died_at: OffsetDateTime,
    /// When the message was received.
    pub received_at: OffsetDateTime,
    /// The number of attempts.
    pub attempt: i32,
    /// All failures, the oldest first.
    pub failures: Vec<Failure>,
    /// The key. Messages with the same key keep their order.
    pub key: Option<String>,
    /// The type of the message.
    pub message_type: Option<String>,
    /// The payload. A JSON payload is its UTF-8 text. `None` if the server cannot return it,
    /// because it is larger than 256 MB.
    pub payload: Option<Vec<u8>>,
    /// The content type of the payload.
    pub content_type: String,
    /// The headers.
    pub headers: Map<String, Value>,
    /// Whether the message was processed after it became a dead letter. It can only be discarded.
    pub processed: bool,
}

/// Omits the payload, which can contain data that must not be logged.
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
            .field(
                "payload",
                &self.payload.as_ref().map(|payload| Length(payload.len())),
            )
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("processed", &self.processed)
            .finish()
    }
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// When the attempt failed, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The number of the attempt.
    pub attempt: i32,
    /// The error.
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
            processed: row.try_get("processed")?,
        })
    }
}

/// Stores a message of a broker as a dead letter. The message is not leased.
///
/// Acknowledge the message after the commit.
///
/// Returns false if the message is already a dead letter, or if it was processed; acknowledge it in
/// this case too. A message without an id gets a UUID that is a hash of its content (headers, key,
/// type and payload), so that all deliveries of the message share one dead letter. Only the
/// beginning of a long error is stored.
///
/// Fails with [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if another process holds the
/// message or if the message is received, with SQLSTATE 53400 if the destination already has
/// `idem.max_dead_letters` dead letters, and with 54000 if payload and headers are larger than
/// `idem.max_payload`. After an error the message must stay at its broker. The transaction must be
/// READ COMMITTED.
pub async fn reject(
    executor: &impl Executor,
    id: Option<&MessageId>,
    destination: &Destination,
    payload: &[u8],
    error: &str,
    with: &DeadLetterContent,
) -> Result<bool, Error> {
    let none: Option<&str> = None;
    let (id, error) = (
        id.map_or((&none as _, Type::TEXT), MessageId::parameter),
        escape::without_zero_bytes(error),
    );
    value(
        executor,
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
    .await
}

/// Returns at most `max_messages` dead letters of a destination, the oldest first.
///
/// `error_like` is a LIKE pattern for the last error; `%` matches all. Needs the role of an
/// operator or an admin.
pub async fn list(
    executor: &impl Executor,
    destination: &Destination,
    error_like: &str,
    max_messages: i64,
) -> Result<Vec<DeadLetter>, Error> {
    let rows = executor
        .fetch_all(
            "SELECT id, died_at, received_at, attempt, errors, key, type, payload, content_type, \
             headers, processed FROM idem.dead_letters \
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

/// Requeues a dead letter, with all its attempts available again.
///
/// Returns false if there is no dead letter of this identity. Fails with SQLSTATE 55000 if the
/// message was processed after it became a dead letter.
pub async fn requeue(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = "SELECT idem_requeue($1, $2)";
    value(executor, sql, &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("requeue", id, destination))
        .await
}

/// Requeues at most `max_messages` dead letters of a destination, the oldest first.
///
/// `error_like` is a LIKE pattern for the last error. Returns the number of requeued dead letters.
pub async fn requeue_all(
    executor: &impl Executor,
    destination: &Destination,
    error_like: &str,
    max_messages: i32,
) -> Result<i32, Error> {
    let parameters = [
        destination.parameter(),
        (&error_like, Type::TEXT),
        (&max_messages, Type::INT4),
    ];
    value(executor, "SELECT idem_requeue_all($1, $2, $3)", &parameters).await
}

/// Discards a dead letter.
///
/// Returns false if there is no dead letter of this identity. The message counts as processed from
/// now on: if it is sent again, it is a duplicate.
pub async fn discard(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = "SELECT idem_discard($1, $2)";
    value(executor, sql, &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("discard", id, destination))
        .await
}

/// Discards at most `max_messages` dead letters of a destination, the oldest first.
///
/// `error_like` is a LIKE pattern for the last error. Returns the number of discarded dead letters.
pub async fn discard_all(
    executor: &impl Executor,
    destination: &Destination,
    error_like: &str,
    max_messages: i32,
) -> Result<i32, Error> {
    let parameters = [
        destination.parameter(),
        (&error_like, Type::TEXT),
        (&max_messages, Type::INT4),
    ];
    value(executor, "SELECT idem_discard_all($1, $2, $3)", &parameters).await
}

/// Sends a dead letter to a topic, as an effect of its message: back to a broker, or to another
/// consumer.
///
/// The message counts as processed from now on.
///
/// Returns the message id of the effect, or `None` if there is no dead letter of this identity.
/// Consumers process the effect as a new message. Fails with SQLSTATE 55000 if the message was
/// processed after it became a dead letter.
pub async fn forward(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    topic: &str,
) -> Result<Option<Uuid>, Error> {
    let parameters = [
        id.parameter(),
        destination.parameter(),
        (&topic as _, Type::TEXT),
    ];
    value(executor, "SELECT idem_forward($1, $2, $3)", &parameters)
        .instrument(span::of_message("forward", id, destination))
        .await
}

/// Sends at most `max_messages` dead letters of a destination to a topic, the oldest first.
///
/// `error_like` is a LIKE pattern for the last error. Returns the number of dead letters that were
/// sent. Skips dead letters that another transaction holds.
pub async fn forward_all(
    executor: &impl Executor,
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
    let sql = "SELECT idem_forward_all($1, $2, $3, $4)";
    value(executor, sql, &parameters).await
}
