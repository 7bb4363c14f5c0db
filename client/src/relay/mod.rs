//! The relay: leases batches of effects, which the caller publishes and acknowledges.

mod outgoing_message;

use std::time::Duration;

use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{Error, Executor, escape::without_zero_bytes, executor::value};

pub use outgoing_message::OutgoingMessage;

/// Effects that are leased together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "the effects stay leased until they are acknowledged or the lease expires"]
pub struct Batch {
    /// The token that proves the lease. It is an argument of [`extend`], [`park`] and
    /// [`ack`].
    pub token: i64,
    /// The effects in their order, at least one.
    pub messages: Vec<OutgoingMessage>,
}

/// Returns the number of partitions of a relay. They are numbered from 0. Fails with
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the relay does not exist.
pub async fn partitions(executor: &impl Executor, relay: &str) -> Result<i32, Error> {
    let sql = "SELECT idem_relay_partitions($1)";
    value(executor, sql, &[(&relay, Type::TEXT)]).await
}

/// Leases the next effects of a partition.
///
/// - `max_effects`: the largest number of effects, 1 to 10,000.
/// - `lease`: how long the effects are leased, 1 ms to 1 day.
/// - `max_bytes`: the largest total size of payloads and headers, 1 byte to 1 GB. The first effect
///   is leased whatever its size.
///
/// Returns `None` if there are no effects or another process holds the lease. After a lease has
/// expired, the same effects are leased again. The transaction must be READ COMMITTED.
pub async fn next(
    executor: &impl Executor,
    relay: &str,
    partition: i32,
    max_effects: i32,
    lease: Duration,
    max_bytes: i64,
) -> Result<Option<Batch>, Error> {
    let rows = executor
        .fetch_all(
            "SELECT token, seq, message_id, topic, key, type, payload, content_type, headers, \
             traceparent, recorded_at, source_destination \
             FROM idem_relay_next($1, $2, $3, make_interval(secs => $4), $5)",
            &[
                (&relay, Type::TEXT),
                (&partition, Type::INT4),
                (&max_effects, Type::INT4),
                (&lease.as_secs_f64(), Type::FLOAT8),
                (&max_bytes, Type::INT8),
            ],
        )
        .await?;
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(Batch {
        token: first.try_get("token")?,
        messages: rows
            .iter()
            .map(OutgoingMessage::try_from)
            .collect::<Result<_, _>>()?,
    }))
}

/// Extends the lease of a batch: the new lease begins now and lasts for the time `lease`. Returns
/// the new token; the old token becomes invalid.
///
/// A lease of 1 ms releases the batch. `waits_for` is what keeps it from being published, for the
/// view `idem.relays` and `idem_health`. Fails with
/// [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed) if the token is stale.
pub async fn extend(
    executor: &impl Executor,
    relay: &str,
    partition: i32,
    token: i64,
    lease: Duration,
    waits_for: Option<&str>,
) -> Result<i64, Error> {
    let waits_for = waits_for.map(without_zero_bytes);
    value(
        executor,
        "SELECT idem_relay_extend($1, $2, $3, make_interval(secs => $4), $5)",
        &[
            (&relay, Type::TEXT),
            (&partition, Type::INT4),
            (&token, Type::INT8),
            (&lease.as_secs_f64(), Type::FLOAT8),
            (&waits_for, Type::TEXT),
        ],
    )
    .await
}

/// Acknowledges the batch of this token: all its effects are published, and the cursor moves past
/// them.
///
/// Fails with [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed) if the token is stale,
/// because the lease expired and another process leased the batch.
pub async fn ack(
    executor: &impl Executor,
    relay: &str,
    partition: i32,
    token: i64,
) -> Result<(), Error> {
    executor
        .fetch_one(
            "SELECT idem_relay_ack($1, $2, $3)",
            &[
                (&relay, Type::TEXT),
                (&partition, Type::INT4),
                (&token, Type::INT8),
            ],
        )
        .await?;
    Ok(())
}

/// Parks one effect of a batch with the reason, so that the other effects of the partition are
/// delivered.
pub async fn park(
    executor: &impl Executor,
    relay: &str,
    partition: i32,
    token: i64,
    message_id: Uuid,
    error: &str,
) -> Result<(), Error> {
    let error = without_zero_bytes(error);
    executor
        .fetch_one(
            "SELECT idem_relay_park($1, $2, $3, $4, $5)",
            &[
                (&relay, Type::TEXT),
                (&partition, Type::INT4),
                (&token, Type::INT8),
                (&message_id, Type::UUID),
                (&error, Type::TEXT),
            ],
        )
        .await?;
    Ok(())
}

/// Waits until new effects are committed: effects that were not committed at the last wait of this
/// session. Waits at most `timeout` (up to 60 s).
///
/// Returns true if there may be effects: call [`next`]. Returns false if the wait ended
/// without a sign of new effects. Call [`next`] from time to time in this case too.
pub async fn wait(executor: &impl Executor, timeout: Duration) -> Result<bool, Error> {
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let sql = "SELECT idem_relay_wait($1)";
    value(executor, sql, &[(&timeout_ms, Type::INT4)]).await
}

/// Hands over the next effects of a relay in one transaction. The effects with a topic in `topics`
/// are stored in the inbox of the destination of the same name, and the batch is acknowledged. An
/// effect that cannot be received is parked with the reason.
///
/// Returns the number of effects in the batch, including effects of other topics. Returns 0 if
/// there are no effects, or another process holds them. The limits of the arguments are the same as
/// for [`next`].
///
/// The transaction must be READ COMMITTED.
pub async fn hand_over(
    executor: &impl Executor,
    relay: &str,
    topics: &[String],
    partition: i32,
    max_effects: i32,
    max_bytes: i64,
) -> Result<i32, Error> {
    value(
        executor,
        "SELECT idem_hand_over($1, $2, $3, $4, $5)",
        &[
            (&relay, Type::TEXT),
            (&topics, Type::TEXT_ARRAY),
            (&partition, Type::INT4),
            (&max_effects, Type::INT4),
            (&max_bytes, Type::INT8),
        ],
    )
    .await
}
