//! Effects as AMQP messages.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU32, Ordering},
};

use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ErrorKind,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::ShortString,
};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    RabbitMqConfig,
    connect::{PATIENCE, connect},
    properties,
};
use crate::{OutgoingMessage, PublishError, Publisher, TransportError};

/// Publishes effects to RabbitMQ: to the queue that the topic names, or to the configured exchange with the topic as routing
/// key. They are persistent, and confirmed by every queue that they went to.
///
/// An effect that no queue takes is [`PublishError::Rejected`], as is one that its exchange refuses. An exchange that does not exist is waited for. One whose
/// headers do not fit into a frame (128 kB, unless the server is told otherwise) is [`PublishError::Permanent`]. The property *message id* is the effect's id, *timestamp* the second of its recording, *type* and *content type* are its own. A
/// header `correlation-id` of the effect becomes that property; its other headers travel as texts, beside `idem-key`,
/// `idem-source-destination` and `traceparent`.
///
/// It connects at the first publish, and again at the next one after the connection was lost.
pub struct RabbitMqPublisher {
    config: RabbitMqConfig,
    /// Locked while somebody connects, so that only one does.
    connection: tokio::sync::Mutex<Option<Connection>>,
    /// A channel has one effect under way at a time. Only then is it sure which one the broker returns, or closes the channel for.
    idle: Mutex<Vec<Channel>>,
    channels: Semaphore,
    /// What the broker takes in one frame, since there was a connection.
    frame_max: AtomicU32,
}

impl RabbitMqPublisher {
    /// Publishes to this RabbitMQ; does not connect yet.
    pub fn new(config: RabbitMqConfig) -> Self {
        Self {
            connection: tokio::sync::Mutex::new(None),
            idle: Mutex::new(Vec::new()),
            channels: Semaphore::new(usize::from(config.max_unconfirmed.max(1))),
            frame_max: AtomicU32::new(u32::MAX),
            config,
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle channel, or a new one.
    async fn channel(&self) -> Result<Channel, TransportError> {
        let found = {
            let mut idle = self.idle();
            idle.retain(|channel| channel.status().connected());
            idle.pop()
        };
        if let Some(channel) = found {
            return Ok(channel);
        }
        timeout(self.config.timeout(), self.open()).await?
    }

    async fn open(&self) -> Result<Channel, TransportError> {
        let channel = {
            let mut connection = self.connection.lock().await;
            let connected = match connection.take().filter(|connection| connection.status().connected()) {
                Some(connected) => connected,
                None => connect(&self.config, "publisher").await?,
            };
            self.frame_max.store(connected.configuration().frame_max(), Ordering::Relaxed);
            // A connection that dies just now may leave this without an answer: then it is not put back.
            let created = timeout(PATIENCE, connected.create_channel()).await?;
            *connection = Some(connected);
            created?
        };
        timeout(PATIENCE, channel.confirm_select(ConfirmSelectOptions::default())).await??;
        Ok(channel)
    }

    /// The broker closes the connection for headers that are larger than a frame, with all that is under way on it: it would
    /// look like a broker that is away, for ever. The payload may have many frames.
    fn fits(&self, properties: &BasicProperties) -> Result<(), PublishError> {
        let (bytes, at_most) = (properties::frame_bytes(properties), self.frame_max.load(Ordering::Relaxed));
        if bytes <= usize::try_from(at_most).unwrap_or(usize::MAX) {
            return Ok(());
        }
        Err(PublishError::Permanent(
            format!("its headers make a frame of {bytes} bytes, and the broker takes {at_most}").into(),
        ))
    }

    async fn send(
        &self,
        channel: &Channel,
        routing_key: ShortString,
        properties: BasicProperties,
        payload: &[u8],
    ) -> Result<Confirmation, TransportError> {
        let exchange = properties::short(&self.config.exchange)?;
        let mandatory = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let published = async {
            let confirm = channel
                .basic_publish(exchange, routing_key, mandatory, payload, properties)
                .await?;
            confirm.await
        };
        Ok(timeout(self.config.timeout(), published).await??)
    }
}

impl Publisher for RabbitMqPublisher {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let properties = properties::outgoing(message).map_err(PublishError::Permanent)?;
        let routing_key = properties::short(&message.topic).map_err(PublishError::Permanent)?;
        let unavailable = |error: TransportError| PublishError::Unavailable(error);

        let _permit = self.channels.acquire().await.map_err(|error| unavailable(error.into()))?;
        let channel = self.channel().await.map_err(unavailable)?;
        if let Err(error) = self.fits(&properties) {
            self.idle().push(channel);
            return Err(error);
        }
        // A channel on which anything went wrong, or whose answer nobody waited for, is not used again.
        let confirmation = self
            .send(&channel, routing_key, properties, &message.payload)
            .await
            .map_err(classify)?;
        self.idle().push(channel);
        judge(confirmation)
    }
}

/// The broker closes a channel for what is on it: an exchange that does not exist, a right that is missing, a message that is too large.
fn classify(error: TransportError) -> PublishError {
    match error.downcast_ref::<lapin::Error>().map(lapin::Error::kind) {
        // The exchange is not there, which is the fault of no effect: parked one by one, all of them would have to be called back.
        Some(ErrorKind::ProtocolError(answer)) if *answer.kind() == AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => {
            PublishError::Unavailable(error)
        }
        Some(ErrorKind::ProtocolError(answer)) if matches!(answer.kind(), AMQPErrorKind::Soft(_)) => {
            PublishError::Rejected(error)
        }
        _ => PublishError::Unavailable(error),
    }
}

fn judge(confirmation: Confirmation) -> Result<(), PublishError> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => Err(PublishError::Rejected(
            format!("no queue took it: {} {}", returned.reply_code, returned.reply_text).into(),
        )),
        Confirmation::Nack(None) => Err(PublishError::Rejected("a queue refused it".into())),
        Confirmation::NotRequested => Err(PublishError::Unavailable("the broker does not confirm".into())),
    }
}
