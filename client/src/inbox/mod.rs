//! The durable inbox: messages are stored first and handled later.
//!
//! [`receive`] stores a message. After the commit its sender can delete the message. [`next`]
//! leases the messages that are due. A failed message is retried by the retry policy of its
//! destination (`idem_configure_retries`) and finally becomes a [dead letter](crate::deadletters).

mod inbox_message;
mod received;

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;
use tracing::Instrument;

use crate::{Destination, Error, Executor, MessageId, executor::value, span};

pub use inbox_message::InboxMessage;
pub use received::Received;

/// Stores a message in the inbox of a destination. Returns false if the message was received or
/// handled before.
///
/// The message is stored when the transaction commits. After that its sender may delete it.
pub async fn receive(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    letter: &InboxMessage,
) -> Result<bool, Error> {
    value(
        executor,
        "SELECT idem_receive_bytes($1, $2, $3, headers => $4, key => $5, deliver_after => $6, \
             type => $7, content_type => $8)",
        &[
            id.parameter(),
            destination.parameter(),
            (&&*letter.payload, Type::BYTEA),
            (&letter.headers_value(), Type::JSONB),
            (&letter.key, Type::TEXT),
            (&letter.deliver_after, Type::TIMESTAMPTZ),
            (&letter.message_type, Type::TEXT),
            (&letter.content_type, Type::TEXT),
        ],
    )
    .instrument(span::of_message("receive", id, destination))
    .await
}

/// Stores several messages in one statement: all of them or none. Returns one result for each
/// message, in the same order: false if the message was received or handled before.
///
/// Messages are received in the order of the list. If several messages of the list have the same
/// id, only the first of them is stored.
pub async fn receive_batch(
    executor: &impl Executor,
    destination: &Destination,
    letters: &[(MessageId, InboxMessage)],
) -> Result<Vec<bool>, Error> {
    let ids: Vec<String> = letters.iter().map(|(id, _)| id.to_string()).collect();
    let of = |part: fn(&InboxMessage) -> Option<&str>| -> Vec<Option<&str>> {
        letters.iter().map(|(_, letter)| part(letter)).collect()
    };
    let payloads: Vec<&[u8]> = letters.iter().map(|(_, letter)| &*letter.payload).collect();
    let headers: Vec<Option<Value>> = letters
        .iter()
        .map(|(_, letter)| letter.headers_value())
        .collect();
    let due: Vec<_> = letters
        .iter()
        .map(|(_, letter)| letter.deliver_after)
        .collect();
    let keys = of(|letter| letter.key.as_deref());
    let types = of(|letter| letter.message_type.as_deref());
    let content_types = of(|letter| letter.content_type.as_deref());
    let rows = executor
        .fetch_all(
            "SELECT idem_receive_bytes(l.id, $1, l.payload, headers => l.headers, key => l.key, \
             deliver_after => l.due, type => l.type, content_type => l.content_type) \
             FROM unnest($2, $3, $4, $5, $6, $7, $8) \
             l (id, payload, headers, key, due, type, content_type)",
            &[
                destination.parameter(),
                (&ids, Type::TEXT_ARRAY),
                (&payloads, Type::BYTEA_ARRAY),
                (&headers, Type::JSONB_ARRAY),
                (&keys, Type::TEXT_ARRAY),
                (&due, Type::TIMESTAMPTZ_ARRAY),
                (&types, Type::TEXT_ARRAY),
                (&content_types, Type::TEXT_ARRAY),
            ],
        )
        .instrument(span::of_batch("receive", destination, letters.len()))
        .await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Leases the next messages of a destination that are due.
///
/// - `max_messages`: the largest number of messages, 1 to 10,000.
/// - `max_bytes`: the largest total size of payloads and headers, 1 byte to 1 GB. The first message
///   is returned whatever its size.
/// - `lease`: how long each message is leased, 1 ms to 1 day.
///
/// Returns at most one message of each key. A message is not returned while an earlier message of
/// its key is due, is being handled, or waits for a retry. An empty list means that no message is
/// due, or that other sessions hold the messages that are due.
///
/// The transaction must be READ COMMITTED. Commit it before the messages are handled. The claim of
/// a message removes the message from the inbox: use
/// [`try_claim`](crate::try_claim) in the transaction that handles the message.
pub async fn next(
    executor: &impl Executor,
    destination: &Destination,
    max_messages: i32,
    max_bytes: i64,
    lease: Duration,
) -> Result<Vec<Received>, Error> {
    let rows = executor
        .fetch_all(
            "SELECT token, seq, id, key, type, payload, content_type, headers, traceparent, \
             attempt, received_at, last_error, lease_expired \
              FROM idem_next($1, $2, make_interval(secs => $3), $4)",
            &[
                destination.parameter(),
                (&max_messages, Type::INT4),
                (&lease.as_secs_f64(), Type::FLOAT8),
                (&max_bytes, Type::INT8),
            ],
        )
        .instrument(span::of_batch(
            "next",
            destination,
            usize::try_from(max_messages).unwrap_or(0),
        ))
        .await?;
    rows.iter().map(Received::try_from).collect()
}

/// Waits until there may be a message to lease, at most `timeout` (up to 60 s).
///
/// Returns true if there may be a message: call [`next`]. Returns false if the wait ended without a
/// sign of a message. Call [`next`] from time to time in this case too.
pub async fn next_wait(
    executor: &impl Executor,
    destination: &Destination,
    timeout: Duration,
) -> Result<bool, Error> {
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    value(
        executor,
        "SELECT idem_next_wait($1, $2)",
        &[destination.parameter(), (&timeout_ms, Type::INT4)],
    )
    .await
}
