//! Stores a message of a broker as a dead letter: a message that used up its attempts, failed for
//! good or was rejected.
//!
//! The view `idem.dead_letters` shows the dead letters. An operator calls the SQL functions
//! `idem_requeue`, `idem_discard` and `idem_forward`.

use tokio_postgres::types::Type;

use crate::{
    Destination, Error, Executor, MessageId, escape, executor::value, inbox::InboxMessage,
};

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
    message: &InboxMessage,
    error: &str,
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
            (&&*message.payload, Type::BYTEA),
            (&error, Type::TEXT),
            (&message.headers_value(), Type::JSONB),
            (&message.key, Type::TEXT),
            (&message.message_type, Type::TEXT),
            (&message.content_type, Type::TEXT),
        ],
    )
    .await
}
