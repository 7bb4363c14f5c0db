//! A lease that is held.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio_postgres::{
    GenericClient,
    types::{Json, Type},
};
use tracing::Instrument;
use uuid::Uuid;

use super::seconds;
use crate::{Destination, Effect, Error, MessageId, span, sql};

/// A lease that was acquired: the right to work on a message until it ends, and to say how that
/// ended. Cheap to clone.
///
/// Who has lost the lease gets [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed) from all of
/// these, and nothing is written.
///
/// Only the server gives one out, so nobody completes what was not leased:
///
/// ```compile_fail,E0451
/// # fn forge(parts: std::sync::Arc<()>) {
/// let forged = idem_client::lease::Held { parts };
/// # }
/// ```
///
/// and what is done already, or somebody else is at, has nothing to complete:
///
/// ```compile_fail,E0599
/// # async fn careless(client: &tokio_postgres::Client, id: idem_client::MessageId, destination: idem_client::Destination)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let lease = idem_client::lease::acquire(client, &id, &destination, std::time::Duration::from_secs(30)).await?;
/// lease.complete(client, &[]).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nobody else works on the message until the lease ends: complete or release it"]
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
    #[cfg_attr(
        not(feature = "runtime"),
        expect(dead_code, reason = "only renewal looks at it")
    )]
    asked_at: Instant,
}

/// What goes into the dead letters with a message that lives at its broker. The payload is given
/// beside it.
#[derive(Clone, Debug, Default)]
pub struct Burial {
    /// An object, or `None`.
    pub headers: Option<Value>,
    /// Messages of one key keep their order.
    pub key: Option<String>,
    /// What kind of message it is.
    pub message_type: Option<String>,
    /// How to take the payload.
    pub content_type: Option<String>,
}

impl Held {
    /// Callers have just been given this token. `asked_at`: when they asked, so that the lease ends
    /// no earlier at the server.
    pub(crate) fn new(
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

    /// The id of the message.
    pub fn id(&self) -> &MessageId {
        &self.parts.id
    }

    /// Who works on it.
    pub fn destination(&self) -> &Destination {
        &self.parts.destination
    }

    /// What fences it.
    pub fn token(&self) -> i64 {
        self.parts.token
    }

    /// The how manyth attempt this is, from 1. Of an exhausted message: how many were made.
    pub fn attempt(&self) -> i32 {
        self.parts.attempt
    }

    /// What the attempt before failed with.
    pub fn last_error(&self) -> Option<&str> {
        self.parts.last_error.as_deref()
    }

    /// For how long it was leased.
    pub fn lease(&self) -> Duration {
        self.parts.lease
    }

    /// When it ends, unless it is extended: not later than at the server.
    #[cfg(feature = "runtime")]
    pub(crate) fn ends_at(&self) -> Instant {
        let Parts {
            asked_at, lease, ..
        } = *self.parts;
        asked_at.checked_add(lease).unwrap_or(asked_at)
    }

    /// Lets it last for so long from now on.
    pub async fn extend(&self, client: &impl GenericClient, lease: Duration) -> Result<(), Error> {
        let (token, lease) = (self.token(), lease.as_secs_f64());
        client
            .query_typed_one(
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

    /// The work is done: claims the message and records its effects, whose message ids it answers.
    /// In a transaction it is done when that commits, together with whatever else was written in
    /// it.
    pub async fn complete(
        &self,
        client: &impl GenericClient,
        effects: &[Effect],
    ) -> Result<Vec<Uuid>, Error> {
        let token = self.token();
        let row = client
            .query_typed_one(
                COMPLETE,
                &[
                    self.id().parameter(),
                    self.destination().parameter(),
                    (&token, Type::INT8),
                    (&Json(effects), Type::JSONB),
                ],
            )
            .instrument(span::of_message("complete", self.id(), self.destination()))
            .await?;
        Ok(row.try_get(0)?)
    }

    /// Gives it back unharmed: the attempt does not count, and anybody may acquire it at once.
    pub async fn give_back(&self, client: &impl GenericClient) -> Result<(), Error> {
        self.end(client, None, false).await.map(drop)
    }

    /// This attempt failed. Answers how long the message rests before the next one; `None` when
    /// there shall be none: its attempts are used up, or the error is final, by itself or as the
    /// database has been told.
    ///
    /// Then a message that was received into the database is among its dead letters already. One
    /// that lives at a broker is [exhausted](super::Lease::Exhausted) when it is acquired again. Of
    /// a long error its beginning is kept.
    pub async fn release(
        &self,
        client: &impl GenericClient,
        error: &str,
        is_final: bool,
    ) -> Result<Option<Duration>, Error> {
        self.end(client, Some(sql::kept(error)), is_final).await
    }

    async fn end(
        &self,
        client: &impl GenericClient,
        error: Option<String>,
        is_final: bool,
    ) -> Result<Option<Duration>, Error> {
        let token = self.token();
        let row = client
            .query_typed_one(
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
            .map(|rest| seconds(Some(rest))))
    }

    /// Puts a message that lives at a broker into the dead letters, with what it carries and why.
    /// Acknowledge it after the commit.
    pub async fn bury(
        &self,
        client: &impl GenericClient,
        payload: &[u8],
        error: &str,
        with: &Burial,
    ) -> Result<(), Error> {
        let (token, error) = (self.token(), sql::kept(error));
        client
            .query_typed_one(
                "SELECT idem_bury($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                &[
                    self.id().parameter(),
                    self.destination().parameter(),
                    (&token, Type::INT8),
                    (&payload, Type::BYTEA),
                    (&error, Type::TEXT),
                    (&with.headers, Type::JSONB),
                    (&with.key, Type::TEXT),
                    (&with.message_type, Type::TEXT),
                    (&with.content_type, Type::TEXT),
                ],
            )
            .instrument(span::of_message("bury", self.id(), self.destination()))
            .await?;
        Ok(())
    }
}

pub(crate) const COMPLETE: &str = "SELECT idem_complete($1, $2, $3, $4)";
