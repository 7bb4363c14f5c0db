//! Sending without an incoming message: no claim, the outbox alone.

use serde_json::Value;
use tokio_postgres::{
    GenericClient,
    types::{ToSql, Type},
};
use tracing::{Instrument, Span};
use uuid::Uuid;

use crate::{Effect, Error, effect::Payload, span};

/// Puts a message into the outbox and answers its id. In a transaction it is published if that commits.
///
/// The time of [`Effect::deliver_after`] belongs to effects of a claim; here it is [`Error::Invalid`].
pub async fn send(client: &impl GenericClient, effect: &Effect) -> Result<Uuid, Error> {
    if effect.deliver_after.is_some() {
        return Err(Error::Invalid(
            "deliver_after is for effects of a claim, a plain send has none".into(),
        ));
    }
    let (payload, content_type): ((&(dyn ToSql + Sync), Type), Option<&str>) = match &effect.payload {
        Payload::Json(value) => ((value, Type::JSONB), None),
        Payload::Bytes { bytes, content_type } => ((bytes, Type::BYTEA), Some(content_type)),
    };
    let headers = (!effect.headers.is_empty()).then(|| Value::Object(effect.headers.clone()));
    async {
        let row = client
            .query_typed_one(
                "SELECT idem_send($1, $2, key => $3, type => $4, headers => $5, \
                 message_id => $6, content_type => $7)",
                &[
                    (&effect.topic, Type::TEXT),
                    payload,
                    (&effect.key, Type::TEXT),
                    (&effect.message_type, Type::TEXT),
                    (&headers, Type::JSONB),
                    (&effect.message_id, Type::UUID),
                    (&content_type, Type::TEXT),
                ],
            )
            .await?;
        let id: Uuid = row.try_get(0)?;
        Span::current().record("messaging.message.id", id.to_string());
        Ok(id)
    }
    .instrument(span::of_send(&effect.topic))
    .await
}
