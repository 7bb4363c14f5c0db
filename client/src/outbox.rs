//! Sends messages without an incoming message: writes to the outbox, without a claim.

use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use tracing::{Instrument, Span};
use uuid::Uuid;

use crate::{Effect, Error, Executor, effect::Content, span};

/// Writes a message to the outbox and returns its message id.
///
/// Inside a transaction, the message is published only if the transaction commits.
///
/// Fails with [`Error::Invalid`] if the effect has a time from [`Effect::deliver_after`], which
/// only effects of a claim support.
pub async fn send(executor: &impl Executor, effect: &Effect) -> Result<Uuid, Error> {
    let send = Send::of(effect)?;
    let span = send.span();
    async {
        let row = executor.fetch_one(send.sql(), &send.parameters()).await?;
        let id: Uuid = row.try_get(0)?;
        span.record("messaging.message.id", id.to_string());
        Ok(id)
    }
    .instrument(span.clone())
    .await
}

/// An effect as the parameters of the SQL function that sends it.
pub struct Send<'e> {
    effect: &'e Effect,
    content_type: Option<&'e str>,
    headers: Option<Value>,
}

impl<'e> Send<'e> {
    /// Prepares an effect. Fails with [`Error::Invalid`] if it has a time from
    /// [`Effect::deliver_after`].
    pub fn of(effect: &'e Effect) -> Result<Self, Error> {
        if effect.deliver_after.is_some() {
            return Err(Error::Invalid(
                "deliver_after is supported only for effects of a claim".into(),
            ));
        }
        Ok(Self {
            effect,
            content_type: match &effect.payload {
                Content::Json(_) => None,
                Content::Bytes { content_type, .. } => Some(content_type),
            },
            headers: (!effect.headers.is_empty()).then(|| Value::Object(effect.headers.clone())),
        })
    }

    /// Returns the statement, for [`parameters`](Self::parameters).
    pub fn sql(&self) -> &'static str {
        match &self.effect.payload {
            Content::Json(_) => {
                "SELECT idem_send($1, $2, key => $3, type => $4, headers => $5, \
                 message_id => $6, content_type => $7)"
            }
            Content::Bytes { .. } => {
                "SELECT idem_send_bytes($1, $2, key => $3, type => $4, headers => $5, \
                 message_id => $6, content_type => $7)"
            }
        }
    }

    /// Returns the span of the call.
    pub fn span(&self) -> Span {
        span::of_send(&self.effect.topic)
    }

    /// Returns the parameters of [`sql`](Self::sql), with their types.
    pub fn parameters(&self) -> [(&(dyn ToSql + Sync), Type); 7] {
        let effect = self.effect;
        [
            (&effect.topic, Type::TEXT),
            match &effect.payload {
                Content::Json(value) => (value, Type::JSONB),
                Content::Bytes { bytes, .. } => (bytes, Type::BYTEA),
            },
            (&effect.key, Type::TEXT),
            (&effect.message_type, Type::TEXT),
            (&self.headers, Type::JSONB),
            (&effect.message_id, Type::UUID),
            (&self.content_type, Type::TEXT),
        ]
    }
}
