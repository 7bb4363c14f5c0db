//! Effects as messages of a stream.

use std::{error::Error as StdError, time::Duration};

use async_nats::{
    ConnectOptions, Event, ServerError, Subject,
    connection::State,
    jetstream::{
        self, Context, ErrorCode,
        context::{GetStreamByNameErrorKind, PublishErrorKind},
        message::PublishMessage,
    },
};
use tokio::{
    select,
    sync::{OnceCell, broadcast},
    time::timeout,
};

use super::{NatsConfig, message, refusal};
use crate::{OutgoingMessage, PublishError, Publisher};

/// What the server says of itself and not of the effect. Its status 503 is no guide: a stream that
/// is full has that, too.
const NOT_NOW: [ErrorCode; 12] = [
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
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

/// What the server says of a stream and not of the effect: it is full, sealed or offline.
const NOT_THIS_STREAM: [ErrorCode; 5] = [
    ErrorCode::STREAM_OFFLINE,
    ErrorCode::STREAM_OFFLINE_REASON,
    ErrorCode::STREAM_SEALED,
    ErrorCode::STREAM_STORE_FAILED,
    ErrorCode::STREAM_TOO_MANY_REQUESTS,
];

/// Where the publisher asks which stream takes a subject.
const STREAM_NAMES: &str = "$JS.API.STREAM.NAMES";

/// How long a server takes at most to reply to that.
const LOOK_UP: Duration = Duration::from_secs(5);

/// How many errors of the server a publish may not have read yet. Older ones are lost to it.
const ERRORS: usize = 256;

/// Publishes effects to NATS JetStream: to the subject that the topic names, confirmed by the
/// stream that takes it.
///
/// A subject that no stream takes, a stream that is full and a missing permission are
/// [`PublishError::TopicUnavailable`]. An effect that its stream refuses for what it is, for
/// example for its size, is [`PublishError::Rejected`]. One that is larger than the server allows,
/// or that has a subject or header that NATS does not know, is [`PublishError::Permanent`].
///
/// The header `Nats-Msg-Id` is the effect's id, by which a stream drops duplicates within its
/// window; further headers are `idem-key`, `message-type`, `content-type`, `traceparent`,
/// `idem-source-destination`, and those of the effect.
///
/// It connects at the first publish; when the connection is lost it connects again by itself.
pub struct NatsPublisher {
    config: NatsConfig,
    context: OnceCell<Context>,
    /// The errors that the server sends besides its replies.
    errors: broadcast::Sender<String>,
}

impl NatsPublisher {
    /// Publishes to this server or cluster; does not connect yet.
    pub fn new(config: NatsConfig) -> Self {
        Self {
            config,
            context: OnceCell::new(),
            errors: broadcast::Sender::new(ERRORS),
        }
    }

    async fn context(&self) -> Result<&Context, PublishError> {
        let connecting = self.context.get_or_try_init(|| {
            let errors = self.errors.clone();
            let options = ConnectOptions::new().event_callback(move |event| {
                if let Event::ServerError(ServerError::Other(error)) = event {
                    // Without a publish under way nothing waits for it.
                    let _ = errors.send(error);
                }
                std::future::ready(())
            });
            self.config.connect_with(options, "publisher")
        });
        let context = connecting.await.map_err(PublishError::Unavailable)?;
        // Otherwise it would be kept until the connection is back, and nobody would know for how
        // long.
        if is_connected(context) {
            Ok(context)
        } else {
            Err(PublishError::Unavailable("the connection is lost".into()))
        }
    }
}

impl Publisher for NatsPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let headers = message::outgoing(message).map_err(PublishError::Permanent)?;
        let subject = Subject::validated(&message.topic)
            .map_err(|error| PublishError::Permanent(error.into()))?;
        let outgoing = PublishMessage::build()
            .payload(message.payload.clone())
            .headers(headers);
        let context = self.context().await?;
        let errors = self.errors.subscribe();
        let published = async {
            match context.send_publish(subject, outgoing).await {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            }
        };
        let published = select! {
            published = published => published,
            error = refusal_of(errors, &message.topic) => return Err(PublishError::TopicUnavailable(error.into())),
        };
        match published {
            Ok(_) => Ok(()),
            Err(error) => Err(self.classify(context, &message.topic, error).await),
        }
    }

    async fn check(&self) -> Result<(), PublishError> {
        let context = self.context().await?;
        // A server without JetStream may have it elsewhere in its cluster. That takes a permission.
        if !context.client().server_info().jetstream {
            let account = context.query_account().await;
            account.map_err(|error| PublishError::Unavailable(error.into()))?;
        }
        Ok(())
    }
}

/// Waits until the server refuses the permission to publish to this subject; for ever if it does
/// not. The server replies nothing then, and its protocol has this text in the place of a code.
async fn refusal_of(mut errors: broadcast::Receiver<String>, subject: &str) -> String {
    loop {
        match errors.recv().await {
            Ok(error) if refusal::is_of(&error, subject) => return error,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl NatsPublisher {
    /// What an error of NATS means: the table in `docs/relays.md`.
    async fn classify(
        &self,
        context: &Context,
        subject: &str,
        error: jetstream::context::PublishError,
    ) -> PublishError {
        match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => return PublishError::Permanent(error.into()),
            PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => {
                return PublishError::Rejected(error.into());
            }
            PublishErrorKind::StreamNotFound | PublishErrorKind::TimedOut => {
                return self.unconfirmed(context, subject, error).await;
            }
            _ => {}
        }
        let reply = error
            .source()
            .and_then(|source| source.downcast_ref::<jetstream::Error>());
        match reply.map(jetstream::Error::error_code) {
            Some(code) if NOT_NOW.contains(&code) => PublishError::Unavailable(error.into()),
            Some(code) if NOT_THIS_STREAM.contains(&code) => {
                PublishError::TopicUnavailable(error.into())
            }
            Some(_) => PublishError::Rejected(error.into()),
            None => PublishError::Unavailable(error.into()),
        }
    }

    /// There was no reply: no stream takes the subject, its stream has no leader, or JetStream is
    /// away. In the last case there is no reply to this request either.
    async fn unconfirmed(
        &self,
        context: &Context,
        subject: &str,
        error: jetstream::context::PublishError,
    ) -> PublishError {
        let errors = self.errors.subscribe();
        // The client's own limit says no more than this one, which is within a relay's limit.
        let limit = LOOK_UP.min(Duration::from_secs(self.config.timeout_s.into()) / 2);
        let found = select! {
            found = timeout(limit, context.stream_by_subject(subject)) => found,
            _ = refusal_of(errors, STREAM_NAMES) => return unexplained(subject, &error),
        };
        match found {
            Ok(Ok(stream)) => PublishError::TopicUnavailable(
                format!("the stream {stream} does not confirm: {error}").into(),
            ),
            Ok(Err(found)) if found.kind() == GetStreamByNameErrorKind::NotFound => {
                PublishError::TopicUnavailable(
                    format!("no stream takes the subject {subject}").into(),
                )
            }
            // The server replied that no stream listens, so it serves.
            Err(_) if error.kind() == PublishErrorKind::StreamNotFound && is_connected(context) => {
                unexplained(subject, &error)
            }
            _ => PublishError::Unavailable(error.into()),
        }
    }
}

fn is_connected(context: &Context) -> bool {
    context.client().connection_state() == State::Connected
}

/// The publisher may not look for the stream.
fn unexplained(subject: &str, error: &jetstream::context::PublishError) -> PublishError {
    let hint = format!("the permission to publish to {STREAM_NAMES} would tell why");
    PublishError::TopicUnavailable(
        format!("no stream confirms the subject {subject}: {error} ({hint})").into(),
    )
}
