//! The calls of a relay, one by one: for whoever needs another loop than [`Relay`](crate::Relay).

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio_postgres::{GenericClient, Row, types::Type};
use uuid::Uuid;

use crate::{Error, OutgoingMessage};

/// Effects that are leased together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "nobody else gets these effects until they are acknowledged or the lease runs out"]
pub struct Batch {
    /// Holds the lease: it goes to [`relay_extend`], [`relay_park`] and [`relay_ack`].
    pub token: i64,
    /// The effects, in order; at least one.
    pub messages: Vec<OutgoingMessage>,
}

/// How many partitions a relay has; they are numbered from 0.
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
pub async fn relay_partitions(client: &impl GenericClient, relay: &str) -> Result<i32, Error> {
    let row = client
        .query_typed_one("SELECT idem_relay_partitions($1)", &[(&relay, Type::TEXT)])
        .await?;
    Ok(row.try_get(0)?)
}

/// Leases the next effects of a partition, at most `max_effects` (1 to 10,000) for `lease` (1 ms to
/// 1 day). Their payloads and headers have at most `max_bytes` bytes (1 to 1 GB) together; one
/// effect is leased whatever its size.
///
/// `None`: there is nothing to do, or another process holds the lease. When a lease has run out,
/// the same effects come again. The transaction must be READ COMMITTED.
pub async fn relay_next(
    client: &impl GenericClient,
    relay: &str,
    partition: i32,
    max_effects: i32,
    lease: Duration,
    max_bytes: i64,
) -> Result<Option<Batch>, Error> {
    let rows = client
        .query_typed(
            "SELECT token, seq, message_id, topic, key, type, payload, content_type, headers, traceparent, recorded_at, \
             source_destination FROM idem_relay_next($1, $2, $3, make_interval(secs => $4), $5)",
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

/// Leases a batch for so long from now on, and answers its new token; the old one is spent.
///
/// With a lease of 1 ms the batch is given back.
/// [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed) for a stale token.
pub async fn relay_extend(
    client: &impl GenericClient,
    relay: &str,
    partition: i32,
    token: i64,
    lease: Duration,
) -> Result<i64, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_relay_extend($1, $2, $3, make_interval(secs => $4))",
            &[
                (&relay, Type::TEXT),
                (&partition, Type::INT4),
                (&token, Type::INT8),
                (&lease.as_secs_f64(), Type::FLOAT8),
            ],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// The batch that a token holds is published: the cursor moves behind it.
///
/// [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed) for a stale token: the lease ran out and
/// another process took it.
pub async fn relay_ack(
    client: &impl GenericClient,
    relay: &str,
    partition: i32,
    token: i64,
) -> Result<(), Error> {
    client
        .query_typed_one(
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

/// Sets one effect of a batch aside, with the reason (at most 8,192 bytes), so that the others go
/// on.
pub async fn relay_park(
    client: &impl GenericClient,
    relay: &str,
    partition: i32,
    token: i64,
    message_id: Uuid,
    error: &str,
) -> Result<(), Error> {
    client
        .query_typed_one(
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

/// Gives a parked effect back to its relay, which delivers it next; false when none is parked under
/// this id.
pub async fn relay_unpark(
    client: &impl GenericClient,
    relay: &str,
    message_id: Uuid,
) -> Result<bool, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_relay_unpark($1, $2)",
            &[(&relay, Type::TEXT), (&message_id, Type::UUID)],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// Gives parked effects back to their relay: the oldest, at most `max_effects` (1 to 10,000), whose
/// error is like the pattern (`%` stands for any text). Returns how many.
pub async fn relay_unpark_all(
    client: &impl GenericClient,
    relay: &str,
    error_like: &str,
    max_effects: i32,
) -> Result<i32, Error> {
    of_parked(
        client,
        "SELECT idem_relay_unpark_all($1, $2, $3)",
        relay,
        error_like,
        max_effects,
    )
    .await
}

/// Deletes a parked effect, which its relay never delivers then; false when none is parked under
/// this id.
pub async fn relay_discard(
    client: &impl GenericClient,
    relay: &str,
    message_id: Uuid,
) -> Result<bool, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_relay_discard($1, $2)",
            &[(&relay, Type::TEXT), (&message_id, Type::UUID)],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// Deletes parked effects as [`relay_unpark_all`] selects them. Returns how many.
pub async fn relay_discard_all(
    client: &impl GenericClient,
    relay: &str,
    error_like: &str,
    max_effects: i32,
) -> Result<i32, Error> {
    of_parked(
        client,
        "SELECT idem_relay_discard_all($1, $2, $3)",
        relay,
        error_like,
        max_effects,
    )
    .await
}

async fn of_parked(
    client: &impl GenericClient,
    statement: &str,
    relay: &str,
    error_like: &str,
    max_effects: i32,
) -> Result<i32, Error> {
    let row = client
        .query_typed_one(
            statement,
            &[
                (&relay, Type::TEXT),
                (&error_like, Type::TEXT),
                (&max_effects, Type::INT4),
            ],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// Waits until effects are committed that this session has not waited for, at most `timeout` (up to
/// 60 s).
///
/// True: look with [`relay_next`]. False: nothing is known, look now and then all the same. Without
/// the library preloaded it only sleeps a little.
pub async fn relay_wait(client: &impl GenericClient, timeout: Duration) -> Result<bool, Error> {
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let row = client
        .query_typed_one("SELECT idem_relay_wait($1)", &[(&timeout_ms, Type::INT4)])
        .await?;
    Ok(row.try_get(0)?)
}

/// Makes a relay with 1 to 256 partitions. It sees what is recorded from now on, or what the outbox
/// still has too.
pub async fn create_relay(
    client: &impl GenericClient,
    name: &str,
    partitions: i32,
    from_oldest: bool,
) -> Result<(), Error> {
    client
        .query_typed_one(
            "SELECT idem_create_relay($1, $2, $3)",
            &[
                (&name, Type::TEXT),
                (&partitions, Type::INT4),
                (&from_oldest, Type::BOOL),
            ],
        )
        .await?;
    Ok(())
}

/// Drops a relay with what it has set aside: the outbox does not wait for it any longer.
pub async fn drop_relay(client: &impl GenericClient, name: &str) -> Result<(), Error> {
    client
        .query_typed_one("SELECT idem_drop_relay($1)", &[(&name, Type::TEXT)])
        .await?;
    Ok(())
}

/// After a restore into a younger cluster: puts aside for each relay what it has not acknowledged;
/// answers how many effects these are. Producers and relays must not run.
pub async fn repair_relays(client: &impl GenericClient) -> Result<i64, Error> {
    let row = client
        .query_typed_one("SELECT idem_repair_relays()", &[])
        .await?;
    Ok(row.try_get(0)?)
}

impl TryFrom<&Row> for OutgoingMessage {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        let headers = match row.try_get("headers")? {
            Some(Value::Object(headers)) => headers,
            None => Map::new(),
            Some(other) => return Err(Error::Unexpected(format!("headers {other}"))),
        };
        Ok(Self {
            seq: row.try_get("seq")?,
            message_id: row.try_get("message_id")?,
            topic: row.try_get("topic")?,
            key: row.try_get("key")?,
            message_type: row.try_get("type")?,
            payload: Bytes::from(row.try_get::<_, Vec<u8>>("payload")?),
            content_type: row.try_get("content_type")?,
            headers,
            traceparent: row.try_get("traceparent")?,
            recorded_at: row.try_get("recorded_at")?,
            source_destination: row.try_get("source_destination")?,
        })
    }
}
