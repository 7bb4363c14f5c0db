//! The publisher: sends effects as messages to a stream.

use std::{error::Error as StdError, time::Duration};

use async_nats::{
    ConnectOptions, Event, ServerError, Subject,
    connection::State,
    jetstream::{
        self, Context, ErrorCode,
        context::{GetStreamByNameErrorKind, PublishErrorKind},
        message::PublishMessage,
        publish::PublishAck,
    },
};
use idem_runtime::{OutgoingMessage, PublishError, Publisher, transport::check_topic};
use tokio::{
    select,
    sync::{OnceCell, broadcast},
    time::timeout,
};

use super::{NatsConfig, message, refusal};

/// The beginnings of the subjects that command the server or carry replies.
const SYSTEM: [&str; 2] = ["$", "_INBOX."];

/// The subject of the request for the name of the stream that takes a subject.
const STREAM_NAMES: &str = "$JS.API.STREAM.NAMES";

/// The longest time to wait for the reply to a request to [`STREAM_NAMES`].
const LOOK_UP: Duration = Duration::from_secs(5);

/// The number of server errors that are kept until a publish reads them. A publish misses older
/// errors.
const ERRORS: usize = 256;

/// Publishes effects to NATS JetStream.
///
/// The topic of an effect is the subject that it is published to. An effect is published when the
/// stream that takes this subject has confirmed it.
///
/// The header `Nats-Msg-Id` is the id of the effect. A stream drops duplicates by this header
/// within its time window for duplicates. The other headers are `idem-key`, `message-type`,
/// `content-type`, `traceparent`, `idem-source-destination`, `idem-recorded-at`, and the headers of
/// the effect.
///
/// The publisher connects at the first publish, and reconnects by itself when the connection is
/// lost.
///
/// # Errors
///
/// - [`PublishError::TopicUnavailable`]: no stream takes the subject, the stream is full, or the
///   permission to publish is missing.
/// - [`PublishError::Rejected`]: the stream rejects this effect, for example because a precondition
///   does not hold.
/// - [`PublishError::Permanent`]: the effect is larger than the server or the stream allows, or its
///   subject or a header is not valid in NATS.
/// - [`PublishError::Unavailable`]: the server cannot be reached or cannot store messages now.
pub struct NatsPublisher {
    config: NatsConfig,
    context: OnceCell<Context>,
    /// The errors that the server sends asynchronously, not as a reply.
    errors: broadcast::Sender<String>,
}

impl NatsPublisher {
    /// Returns a publisher for this server or cluster. Does not connect.
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
                    // `send` fails if no publish is in progress. No publish needs the error then.
                    let _ = errors.send(error);
                }
                std::future::ready(())
            });
            self.config.connect_with(options, "publisher")
        });
        let context = connecting.await.map_err(PublishError::Unavailable)?;
        // Without a connection the client library would keep the effect until it has reconnected,
        // for an unknown time. So fail at once.
        if is_connected(context) {
            Ok(context)
        } else {
            Err(PublishError::Unavailable("the connection is lost".into()))
        }
    }
}

impl Publisher for NatsPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        check_topic(&message.topic, &SYSTEM, self.config.system_topics)?;
        if message
            .topic
            .split('.')
            .any(|part| ["*", ">"].contains(&part))
        {
            let cause = "the topic has a wildcard, and no stream stores a subject with one";
            return Err(PublishError::Permanent(cause.into()));
        }
        let headers = message::outgoing(message).map_err(PublishError::Permanent)?;
        let subject = Subject::validated(&message.topic)
            .map_err(|error| PublishError::Permanent(error.into()))?;
        let outgoing = PublishMessage::build()
            .payload(message.payload.0.clone())
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
            error = refusal_of(errors, &message.topic) => {
                return Err(PublishError::TopicUnavailable(error.into()));
            }
        };
        match published {
            Ok(confirmed) if is_from_a_stream(&confirmed) => Ok(()),
            Ok(_) => Err(not_from_a_stream()),
            Err(error) => Err(self.classify(context, &message.topic, error).await),
        }
    }

    async fn check(&self) -> Result<(), PublishError> {
        let context = self.context().await?;
        // This server has no JetStream, but another server of the cluster may have it. The request
        // needs a permission, so it is sent only in this case.
        if !context.client().server_info().jetstream {
            let account = context.query_account().await;
            account.map_err(|error| PublishError::Unavailable(error.into()))?;
        }
        Ok(())
    }
}

/// Waits until the server denies the permission to publish to this subject, and returns the
/// server's error. The server sends this error instead of a reply. Waits without end if the server
/// does not deny the permission.
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
    /// Converts an error of NATS to a [`PublishError`], according to the table in `docs/relays.md`.
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
        let cause = error.source();
        if cause.is_some_and(|cause| cause.is::<serde_json::Error>()) {
            return not_from_a_stream();
        }
        let reply = cause.and_then(|cause| cause.downcast_ref::<jetstream::Error>());
        match reply.map(jetstream::Error::error_code) {
            // The error concerns the server and not the effect. The status 503 does not identify
            // such errors: a full stream has this status, too.
            Some(
                ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
                | ErrorCode::CLUSTER_INCOMPLETE
                | ErrorCode::CLUSTER_NOT_ACTIVE
                | ErrorCode::CLUSTER_NOT_ASSIGNED
                | ErrorCode::CLUSTER_NOT_AVAILABLE
                | ErrorCode::CLUSTER_NOT_LEADER
                | ErrorCode::INSUFFICIENT_RESOURCES
                | ErrorCode::JETSTREAM_NOT_ENABLED
                | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
                | ErrorCode::MEMORY_RESOURCES_EXCEEDED
                | ErrorCode::RAFT_GENERAL
                | ErrorCode::STORAGE_RESOURCES_EXCEEDED,
            ) => PublishError::Unavailable(error.into()),
            // The error concerns a stream and not the effect: the stream is full, sealed or
            // offline.
            Some(
                ErrorCode::STREAM_OFFLINE
                | ErrorCode::STREAM_OFFLINE_REASON
                | ErrorCode::STREAM_SEALED
                | ErrorCode::STREAM_STORE_FAILED
                | ErrorCode::STREAM_TOO_MANY_REQUESTS,
            ) => PublishError::TopicUnavailable(error.into()),
            // The error concerns the size of the effect.
            Some(
                ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM
                | ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM,
            ) => PublishError::Permanent(error.into()),
            Some(_) => PublishError::Rejected(error.into()),
            None => PublishError::Unavailable(error.into()),
        }
    }

    /// Finds the cause of a missing reply, and returns the error. There are three causes: no stream
    /// takes the subject, its stream has no leader, or JetStream is not available. If JetStream is
    /// not available, the request of this function also receives no reply.
    async fn unconfirmed(
        &self,
        context: &Context,
        subject: &str,
        error: jetstream::context::PublishError,
    ) -> PublishError {
        let errors = self.errors.subscribe();
        // The limit is shorter than the timeout of the client library, so that the request ends
        // within the time limit of a relay.
        let limit = LOOK_UP.min(Duration::from_secs(self.config.timeout_s.into()) / 2);
        let found = select! {
            found = timeout(limit, context.stream_by_subject(subject)) => found,
            _ = refusal_of(errors, STREAM_NAMES) => return unexplained(subject, &error),
        };
        match found {
            Ok(Ok(stream)) => PublishError::TopicUnavailable(
                format!("the stream {stream} did not confirm the effect: {error}").into(),
            ),
            Ok(Err(found)) if found.kind() == GetStreamByNameErrorKind::NotFound => {
                PublishError::TopicUnavailable(
                    format!("no stream takes the subject {subject}").into(),
                )
            }
            // The server replied to the publish that no stream takes the subject, so it is
            // available. But it did not reply to the look-up of the stream.
            Err(_) if error.kind() == PublishErrorKind::StreamNotFound && is_connected(context) => {
                unexplained(subject, &error)
            }
            _ => PublishError::Unavailable(error.into()),
        }
    }
}

pub(super) const NOT_FROM_A_STREAM: &str =
    "the reply is no confirmation of a stream: a service takes the subject";

/// Returns whether a confirmation names a stream and a place in it. Streams count from 1.
pub(super) fn is_from_a_stream(confirmed: &PublishAck) -> bool {
    !confirmed.stream.is_empty() && confirmed.sequence > 0
}

/// Returns the error for an effect to which something else than a stream has replied.
fn not_from_a_stream() -> PublishError {
    PublishError::TopicUnavailable(NOT_FROM_A_STREAM.into())
}

fn is_connected(context: &Context) -> bool {
    context.client().connection_state() == State::Connected
}

/// Returns the error for an effect that was not confirmed, if the publisher has no permission to
/// look up the stream.
fn unexplained(subject: &str, error: &jetstream::context::PublishError) -> PublishError {
    let hint = format!("grant the permission to publish to {STREAM_NAMES} to find the cause");
    PublishError::TopicUnavailable(
        format!("no stream confirmed the subject {subject}: {error} ({hint})").into(),
    )
}
