//! Effects as messages of a stream.

use std::error::Error as StdError;

use async_nats::{
    Subject,
    connection::State,
    jetstream::{
        self, Context, ErrorCode,
        context::{GetStreamByNameErrorKind, PublishErrorKind},
        message::PublishMessage,
    },
};
use tokio::sync::OnceCell;

use super::{NatsConfig, message};
use crate::{OutgoingMessage, PublishError, Publisher};

/// What the server says of itself and not of the effect. Its status 503 is no guide: a stream that is full has that, too.
const NOT_NOW: [ErrorCode; 11] = [
    ErrorCode::CLUSTER_INCOMPLETE,
    ErrorCode::CLUSTER_NOT_ACTIVE,
    ErrorCode::CLUSTER_NOT_ASSIGNED,
    ErrorCode::CLUSTER_NOT_AVAILABLE,
    ErrorCode::CLUSTER_NOT_LEADER,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::JETSTREAM_NOT_ENABLED,
    ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ErrorCode::RAFT_GENERAL,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
];

/// Publishes effects to NATS JetStream: to the subject that the topic names, confirmed by the stream that takes it.
///
/// An effect whose subject no stream takes is [`PublishError::Rejected`], as is one that its stream refuses; one that is larger
/// than the server allows, or that has a subject or header that NATS does not know, is [`PublishError::Permanent`].
///
/// The header `Nats-Msg-Id` is the effect's id, by which a stream drops duplicates within its window; further headers are
/// `idem-key`, `message-type`, `content-type`, `traceparent`, `idem-source-destination`, and those of the effect.
///
/// It connects at the first publish; when the connection is lost it connects again by itself.
pub struct NatsPublisher {
    config: NatsConfig,
    context: OnceCell<Context>,
}

impl NatsPublisher {
    /// Publishes to this server or cluster; does not connect yet.
    pub fn new(config: NatsConfig) -> Self {
        Self {
            config,
            context: OnceCell::new(),
        }
    }

    async fn context(&self) -> Result<&Context, PublishError> {
        let connecting = self.context.get_or_try_init(|| self.config.connect("publisher"));
        let context = connecting.await.map_err(PublishError::Unavailable)?;
        // Otherwise it would be kept until the connection is back, and nobody would know for how long.
        if context.client().connection_state() == State::Connected {
            Ok(context)
        } else {
            Err(PublishError::Unavailable("the connection is lost".into()))
        }
    }
}

impl Publisher for NatsPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let headers = message::outgoing(message).map_err(PublishError::Permanent)?;
        let subject = Subject::validated(&message.topic).map_err(|error| PublishError::Permanent(error.into()))?;
        let outgoing = PublishMessage::build().payload(message.payload.clone()).headers(headers);
        let context = self.context().await?;
        let published = match context.send_publish(subject, outgoing).await {
            Ok(confirmation) => confirmation.await,
            Err(error) => Err(error),
        };
        match published {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => Err(nobody_listens(context, &message.topic).await),
            Err(error) => Err(classify(error)),
        }
    }
}

/// Nobody has answered: either no stream takes the subject, or JetStream is not there. The latter would not answer this either.
async fn nobody_listens(context: &Context, subject: &str) -> PublishError {
    match context.stream_by_subject(subject).await {
        Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => {
            PublishError::Rejected(format!("no stream takes the subject {subject}").into())
        }
        Err(error) => PublishError::Unavailable(error.into()),
        Ok(stream) => PublishError::Unavailable(format!("the stream {stream} does not answer").into()),
    }
}

fn classify(error: jetstream::context::PublishError) -> PublishError {
    let refusal = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    let is_refused = refusal.is_some_and(|error| !NOT_NOW.contains(&error.error_code()));
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => PublishError::Permanent(error.into()),
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => PublishError::Rejected(error.into()),
        PublishErrorKind::Other if is_refused => PublishError::Rejected(error.into()),
        _ => PublishError::Unavailable(error.into()),
    }
}
