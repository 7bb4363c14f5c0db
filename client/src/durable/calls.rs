//! The calls of the inbox, one by one.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::{GenericClient, types::Type};
use tracing::Instrument;

use super::{Letter, Received};
use crate::{Destination, Error, MessageId, span};

/// Stores a message in the inbox of a destination; false when it was received or handled before.
///
/// In a transaction it is there if that commits. After that its sender may forget it.
pub async fn receive(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    letter: &Letter,
) -> Result<bool, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_receive_bytes($1, $2, $3, headers => $4, key => $5, deliver_after => $6, type => $7, content_type => $8)",
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
        .await?;
    Ok(row.try_get(0)?)
}

/// Stores many messages in one statement, all of them or none, and answers by position. Of two with
/// one id the first in the order of the letters is stored.
///
/// Messages are received in the order of the list.
pub async fn receive_batch(
    client: &impl GenericClient,
    destination: &Destination,
    letters: &[(MessageId, Letter)],
) -> Result<Vec<bool>, Error> {
    let ids: Vec<String> = letters.iter().map(|(id, _)| id.to_string()).collect();
    let of = |part: fn(&Letter) -> Option<&str>| -> Vec<Option<&str>> {
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
    let rows = client
        .query_typed(
            "SELECT idem_receive_bytes(l.id, $1, l.payload, headers => l.headers, key => l.key, deliver_after => l.due, \
             type => l.type, content_type => l.content_type) \
             FROM unnest($2, $3, $4, $5, $6, $7, $8) l (id, payload, headers, key, due, type, content_type)",
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
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Leases the next messages of a destination that are due, each for so long (1 ms to 1 day): at
/// most `max_messages` (1 to 10,000), whose payloads and headers have at most `max_bytes` bytes (1
/// to 1 GB) together. The first message is returned whatever its size.
///
/// Of one key it returns one message at a time, and none while an earlier message of the key is due
/// or fails. An empty list: no message is due, or other sessions hold what is due. The transaction
/// must be READ COMMITTED, and committed before the work begins. A message is ended by its claim:
/// with [`Idem::process`](crate::Idem::process), or with [`try_claim`](crate::try_claim) in the
/// transaction of the work.
pub async fn next(
    client: &impl GenericClient,
    destination: &Destination,
    max_messages: i32,
    max_bytes: i64,
    lease: Duration,
) -> Result<Vec<Received>, Error> {
    let rows = client
        .query_typed(
            "SELECT token, seq, id, key, type, payload, content_type, headers, traceparent, attempt, received_at, last_error, lease_expired \
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

/// Waits until there may be a message to hand out, at most `timeout` (up to 60 s).
///
/// True: look with [`next`]. False: nothing is known, look now and then all the same.
pub async fn next_wait(
    client: &impl GenericClient,
    destination: &Destination,
    timeout: Duration,
) -> Result<bool, Error> {
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let row = client
        .query_typed_one(
            "SELECT idem_next_wait($1, $2)",
            &[destination.parameter(), (&timeout_ms, Type::INT4)],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// How often and when a failed message of a destination is tried again: the database's own rule,
/// for all consumers.
///
/// After the n-th failure it rests `base` times `factor` to the power of n - 1, at most `cap`; a
/// share of that, `jitter`, is random.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    max_attempts: i32,
    base: Duration,
    factor: f64,
    cap: Duration,
    jitter: f64,
    final_errors: Vec<String>,
}

impl Default for RetryPolicy {
    /// What holds for a destination that nobody has configured: 10 attempts, rests from 1 s,
    /// doubled up to 10 minutes.
    fn default() -> Self {
        Self {
            max_attempts: 10,
            base: Duration::from_secs(1),
            factor: 2.0,
            cap: Duration::from_secs(600),
            jitter: 0.2,
            final_errors: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// After so many attempts a message is dead.
    #[must_use]
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// How long it rests after the first failure, and at most.
    #[must_use]
    pub fn back_off(mut self, base: Duration, cap: Duration) -> Self {
        (self.base, self.cap) = (base, cap);
        self
    }

    /// By how much each rest is longer than the one before.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Which share of a rest is random, 0 to 1.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// An error that this pattern of LIKE matches is not tried again. Several may be given.
    #[must_use]
    pub fn final_error(mut self, pattern: impl Into<String>) -> Self {
        self.final_errors.push(pattern.into());
        self
    }
}

/// Says how the failed messages of a destination are tried again. Needs the role of an admin.
pub async fn configure_retries(
    client: &impl GenericClient,
    destination: &Destination,
    policy: &RetryPolicy,
) -> Result<(), Error> {
    client
        .query_typed(
            "SELECT idem_configure_retries($1, max_attempts => $2, base => make_interval(secs => $3), factor => $4, \
             cap => make_interval(secs => $5), jitter => $6, final_errors => $7)",
            &[
                destination.parameter(),
                (&policy.max_attempts, Type::INT4),
                (&policy.base.as_secs_f64(), Type::FLOAT8),
                (&policy.factor, Type::FLOAT8),
                (&policy.cap.as_secs_f64(), Type::FLOAT8),
                (&policy.jitter, Type::FLOAT8),
                (&policy.final_errors, Type::TEXT_ARRAY),
            ],
        )
        .await?;
    Ok(())
}
