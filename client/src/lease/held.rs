//! A lease that is held.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_postgres::types::{Json, Type};
use tracing::Instrument;
use uuid::Uuid;

use crate::{
    Destination, Effect, Error, Executor, MessageId, escape, executor::value, inbox::InboxMessage,
    span,
};

/// A lease that was acquired. It is the right to work on a message until the lease ends, and to
/// complete or release the message. Cheap to clone.
///
/// After the lease is lost, all functions that write return
/// [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed), and nothing is written.
///
/// A message that was processed before, or that another process holds, cannot be completed:
///
/// ```compile_fail,E0599
/// # async fn careless(
/// #     client: &tokio_postgres::Client, id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let lease = idem_client::lease::acquire(
///     client, &id, &destination, std::time::Duration::from_secs(30),
/// )
/// .await?;
/// lease.complete(client, &[]).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the message stays leased until the lease is completed, released or expires"]
pub struct Held {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    id: MessageId,
    destination: Destination,
    token: i64,
    attempt: i32,
    last_error: Option<String>,
    lease: Duration,
    asked_at: Instant,
}

impl Held {
    /// Creates the lease for a token that the server has returned. [`acquire`](super::acquire) and
    /// [`Received::held`](crate::inbox::Received::held) do this themselves.
    ///
    /// `lease` is the duration of the lease. `asked_at` is a time before the request was sent, so
    /// this process never assumes a later end of the lease than the server. The server checks the
    /// token at each call: with a token that it did not return, all functions that write fail with
    /// [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed).
    pub fn new(
        id: &MessageId,
        destination: &Destination,
        token: i64,
        attempt: i32,
        last_error: Option<String>,
        lease: Duration,
        asked_at: Instant,
    ) -> Self {
        Self {
            parts: Arc::new(Parts {
                id: id.clone(),
                destination: destination.clone(),
                token,
                attempt,
                last_error,
                lease,
                asked_at,
            }),
        }
    }

    /// Returns the same lease with another end: it was extended for the time `lease`, counted from
    /// now. Does not extend it at the server.
    pub fn lasting(&self, lease: Duration) -> Self {
        Self::new(
            self.id(),
            self.destination(),
            self.token(),
            self.attempt(),
            self.last_error().map(str::to_owned),
            lease,
            Instant::now(),
        )
    }

    /// Returns the id of the message.
    pub fn id(&self) -> &MessageId {
        &self.parts.id
    }

    /// Returns the destination of the message.
    pub fn destination(&self) -> &Destination {
        &self.parts.destination
    }

    /// Returns the fencing token.
    pub fn token(&self) -> i64 {
        self.parts.token
    }

    /// Returns the number of this attempt, from 1. For an exhausted message this is the number of
    /// attempts that were made.
    pub fn attempt(&self) -> i32 {
        self.parts.attempt
    }

    /// Returns the error of the previous attempt.
    pub fn last_error(&self) -> Option<&str> {
        self.parts.last_error.as_deref()
    }

    /// Returns the duration of the lease.
    pub fn lease(&self) -> Duration {
        self.parts.lease
    }

    /// Returns when the lease ends unless it is extended. The server ends the lease at this time or
    /// later.
    pub fn ends_at(&self) -> Instant {
        let Parts {
            asked_at, lease, ..
        } = *self.parts;
        asked_at.checked_add(lease).unwrap_or(asked_at)
    }

    /// Extends the lease: it now ends after the time `lease`, counted from now.
    pub async fn extend(&self, executor: &impl Executor, lease: Duration) -> Result<(), Error> {
        let (token, lease) = (self.token(), lease.as_secs_f64());
        executor
            .fetch_one(
                "SELECT idem_extend($1, $2, $3, make_interval(secs => $4))",
                &[
                    self.id().parameter(),
                    self.destination().parameter(),
                    (&token, Type::INT8),
                    (&lease, Type::FLOAT8),
                ],
            )
            .instrument(span::of_message("extend", self.id(), self.destination()))
            .await?;
        Ok(())
    }

    /// Completes the message: claims it, records its effects and returns their message ids. The
    /// message is completed when the transaction commits, together with everything else that was
    /// written in it.
    pub async fn complete(
        &self,
        executor: &impl Executor,
        effects: &[Effect],
    ) -> Result<Vec<Uuid>, Error> {
        let token = self.token();
        value(
            executor,
            COMPLETE,
            &[
                self.id().parameter(),
                self.destination().parameter(),
                (&token, Type::INT8),
                (&Json(effects), Type::JSONB),
            ],
        )
        .instrument(span::of_message("complete", self.id(), self.destination()))
        .await
    }

    /// Releases the message without a failure. The attempt does not count, and the message can be
    /// acquired again at once.
    pub async fn give_back(&self, executor: &impl Executor) -> Result<(), Error> {
        self.end(executor, None, false).await.map(drop)
    }

    /// Reports that this attempt failed. Returns the delay until the next attempt. Returns `None`
    /// if there is no next attempt: the attempts are used up, `is_final` is true, or the error
    /// matches a final error of the retry policy.
    ///
    /// After `None`, a message that was received into the database is a dead letter. A message that
    /// is kept at a broker is [exhausted](super::Lease::Exhausted) when it is acquired the next
    /// time. A long error is truncated.
    pub async fn release(
        &self,
        executor: &impl Executor,
        error: &str,
        is_final: bool,
    ) -> Result<Option<Duration>, Error> {
        self.end(executor, Some(escape::without_zero_bytes(error)), is_final)
            .await
    }

    async fn end(
        &self,
        executor: &impl Executor,
        error: Option<String>,
        is_final: bool,
    ) -> Result<Option<Duration>, Error> {
        let token = self.token();
        let row = executor
            .fetch_one(
                "SELECT extract(epoch FROM idem_release($1, $2, $3, $4, $5))::float8",
                &[
                    self.id().parameter(),
                    self.destination().parameter(),
                    (&token, Type::INT8),
                    (&error, Type::TEXT),
                    (&is_final, Type::BOOL),
                ],
            )
            .instrument(span::of_message("release", self.id(), self.destination()))
            .await?;
        Ok(row
            .try_get::<_, Option<f64>>(0)?
            .map(|retry_after| seconds(Some(retry_after))))
    }

    /// Stores a message that is kept at a broker as a dead letter, with its content and the error.
    /// Acknowledge the message after the commit.
    pub async fn bury(
        &self,
        executor: &impl Executor,
        message: &InboxMessage,
        error: &str,
    ) -> Result<(), Error> {
        let (token, error) = (self.token(), escape::without_zero_bytes(error));
        executor
            .fetch_one(
                "SELECT idem_bury($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                &[
                    self.id().parameter(),
                    self.destination().parameter(),
                    (&token, Type::INT8),
                    (&&*message.payload, Type::BYTEA),
                    (&error, Type::TEXT),
                    (&message.headers_value(), Type::JSONB),
                    (&message.key, Type::TEXT),
                    (&message.message_type, Type::TEXT),
                    (&message.content_type, Type::TEXT),
                ],
            )
            .instrument(span::of_message("bury", self.id(), self.destination()))
            .await?;
        Ok(())
    }
}

/// Completes a leased message: id, destination, token and a JSON array of effects. Returns the
/// message ids of the effects.
const COMPLETE: &str = "SELECT idem_complete($1, $2, $3, $4)";

/// Converts a time from the server to a duration.
pub(super) fn seconds(seconds: Option<f64>) -> Duration {
    Duration::try_from_secs_f64(seconds.unwrap_or_default()).unwrap_or_default()
}
