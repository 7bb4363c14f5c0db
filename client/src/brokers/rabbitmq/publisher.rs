//! Effects as AMQP messages.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionStatus, ErrorKind, ExchangeKind,
    options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{FieldTable, ShortString},
};
use tokio::{
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

use super::{
    RabbitMqConfig,
    connect::{PATIENCE, connect},
    properties,
};
use crate::{OutgoingMessage, PublishError, Publisher, TransportError};

/// How long a server that serves takes at most to open a channel. With the default time limit of a
/// confirmation that is less than a relay's default time limit.
const PROBE: Duration = Duration::from_secs(5);

/// Publishes effects to RabbitMQ: to the queue that the topic names, or to the configured exchange
/// with the topic as routing key. They are persistent, and confirmed by every queue that they went
/// to.
///
/// An exchange that does not exist, an effect that no queue takes, a queue that is full or does not
/// confirm in time, and a missing permission are [`PublishError::TopicUnavailable`]. An effect that
/// RabbitMQ refuses for its size or its properties is [`PublishError::Rejected`]. One whose headers
/// do not fit into a frame (128 kB, unless the server is configured otherwise) is
/// [`PublishError::Permanent`].
///
/// The property *message id* is the effect's id, *timestamp* the second of its recording, *type*
/// and *content type* are its own. A header `correlation-id` of the effect becomes that property;
/// its other headers travel as texts, beside `idem-key`, `idem-source-destination` and
/// `traceparent`.
///
/// It connects at the first publish, and again at the next one after the connection was lost.
pub struct RabbitMqPublisher {
    config: RabbitMqConfig,
    /// Locked while one effect connects for all. Every other use borrows it: an effect that is
    /// given up takes no connection from the others.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    /// A channel has one effect under way at a time. Only then is it sure which one the broker
    /// returns, or closes the channel for.
    idle: Mutex<Vec<Channel>>,
    channels: Semaphore,
    /// What the broker takes in one frame, since there was a connection.
    frame_max: AtomicU32,
    /// The state of the connection, since there was one.
    status: Mutex<Option<ConnectionStatus>>,
    /// The end and the result of the last probe. Locked during one, so that there is one at a time.
    probed: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl RabbitMqPublisher {
    /// Publishes to this RabbitMQ; does not connect yet.
    pub fn new(config: RabbitMqConfig) -> Self {
        Self {
            connection: tokio::sync::Mutex::new(None),
            idle: Mutex::new(Vec::new()),
            channels: Semaphore::new(usize::from(config.max_unconfirmed.max(1))),
            frame_max: AtomicU32::new(u32::MAX),
            status: Mutex::new(None),
            probed: tokio::sync::Mutex::new(None),
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
        let connection = self.connection().await?;
        let opening = async {
            let channel = connection.create_channel().await?;
            channel
                .confirm_select(ConfirmSelectOptions::default())
                .await?;
            Ok::<_, lapin::Error>(channel)
        };
        match timeout(self.patience(), opening).await {
            Ok(opened) => Ok(opened?),
            Err(_) => {
                self.leave(&connection).await;
                Err("the broker does not open a channel".into())
            }
        }
    }

    /// How long a channel may take to open. Less than the time limit around it, which would end the
    /// wait before the connection is found dead, so that the next effect would wait for it again.
    fn patience(&self) -> Duration {
        PATIENCE.min(self.config.timeout() / 2)
    }

    async fn connection(&self) -> Result<Arc<Connection>, TransportError> {
        let mut connection = self.connection.lock().await;
        if let Some(connected) = connection
            .as_ref()
            .filter(|connection| connection.status().connected())
        {
            return Ok(Arc::clone(connected));
        }
        let connected = Arc::new(connect(&self.config, "publisher").await?);
        self.frame_max
            .store(connected.configuration().frame_max(), Ordering::Relaxed);
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(connected.status().clone());
        Ok(Arc::clone(connection.insert(connected)))
    }

    /// The connection may have died without a sign. What is under way on it keeps it until that is
    /// confirmed or given up.
    async fn leave(&self, left: &Arc<Connection>) {
        let mut connection = self.connection.lock().await;
        connection.take_if(|connection| Arc::ptr_eq(connection, left));
    }

    /// The broker closes the connection for headers that are larger than a frame, with all that is
    /// under way on it: it would look like a broker that is away, for ever. The payload may have
    /// many frames.
    fn fits(&self, properties: &BasicProperties) -> Result<(), PublishError> {
        let (bytes, at_most) = (
            properties::frame_bytes(properties),
            self.frame_max.load(Ordering::Relaxed),
        );
        if bytes <= usize::try_from(at_most).unwrap_or(usize::MAX) {
            return Ok(());
        }
        Err(PublishError::Permanent(
            format!("its headers make a frame of {bytes} bytes, and the broker takes {at_most}")
                .into(),
        ))
    }

    /// A server with a memory or disk alarm reads nothing from its publishers until the alarm ends.
    fn is_not_blocked(&self) -> Result<(), PublishError> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        match &*status {
            Some(status) if status.blocked() && status.connected() => {
                Err(PublishError::Unavailable(
                    "the broker has blocked the connection: it has a memory or disk alarm".into(),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether the server replies on its connection, which opens a channel. A server with an alarm
    /// does not. Effects that ask at once share one probe.
    async fn serves(&self) -> bool {
        let asked = Instant::now();
        let mut probed = self.probed.lock().await;
        if let Some((_, serves)) = probed.filter(|(ended, _)| *ended >= asked) {
            return serves;
        }
        let serves = self.probe().await;
        *probed = Some((Instant::now(), serves));
        serves
    }

    async fn probe(&self) -> bool {
        let is_connected = {
            let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
            status
                .as_ref()
                .is_some_and(|status| status.connected() && !status.blocked())
        };
        if !is_connected {
            return false;
        }
        match timeout(PROBE, self.open()).await {
            Ok(Ok(channel)) => {
                self.keep_one(channel);
                true
            }
            _ => false,
        }
    }

    /// Keeps the channel of a probe if no channel is idle. Effects that are given up at different
    /// times have a probe each, and their channels would add up.
    fn keep_one(&self, channel: Channel) {
        let mut idle = self.idle();
        idle.retain(|channel| channel.status().connected());
        if idle.is_empty() {
            idle.push(channel);
        }
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

        self.is_not_blocked()?;
        let _permit = self
            .channels
            .acquire()
            .await
            .map_err(|error| unavailable(error.into()))?;
        let channel = self.channel().await.map_err(unavailable)?;
        if let Err(error) = self.fits(&properties) {
            self.idle().push(channel);
            return Err(error);
        }
        // A channel on which anything went wrong, or whose answer nobody waited for, is not used
        // again.
        let sent = self
            .send(&channel, routing_key, properties, &message.payload)
            .await;
        if sent.is_ok() {
            self.idle().push(channel);
        }
        let is_unconfirmed = matches!(&sent, Err(error) if error.is::<Elapsed>());
        let judged = judge(sent).or_else(|error| self.is_not_blocked().and(Err(error)));
        if is_unconfirmed && judged.is_err() && self.serves().await {
            let waited = self.config.timeout();
            return Err(PublishError::TopicUnavailable(
                format!("a queue did not confirm it within {waited:?}, though the broker serves")
                    .into(),
            ));
        }
        judged
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.is_not_blocked()?;
        let channel = self.channel().await.map_err(PublishError::Unavailable)?;
        if !self.config.exchange.is_empty() {
            let exchange =
                properties::short(&self.config.exchange).map_err(PublishError::Permanent)?;
            let options = ExchangeDeclareOptions {
                passive: true,
                ..ExchangeDeclareOptions::default()
            };
            // The server does not look at the kind of a passive declaration.
            let found = channel.exchange_declare(
                exchange,
                ExchangeKind::Direct,
                options,
                FieldTable::default(),
            );
            let found = timeout(PATIENCE, found).await;
            found
                .map_err(|error| PublishError::Unavailable(error.into()))?
                .map_err(|error| classify(error.into()))?;
        }
        self.idle().push(channel);
        Ok(())
    }
}

/// What RabbitMQ's reply to an effect means: the table in `docs/relays.md`.
fn judge(sent: Result<Confirmation, TransportError>) -> Result<(), PublishError> {
    match sent {
        Ok(Confirmation::Ack(None)) => Ok(()),
        // Mandatory, and no queue is bound for it.
        Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
            Err(PublishError::TopicUnavailable(
                format!(
                    "no queue took it: {} {}",
                    returned.reply_code, returned.reply_text
                )
                .into(),
            ))
        }
        // The queue is full and has the overflow `reject-publish`, or has no leader.
        Ok(Confirmation::Nack(None)) => {
            Err(PublishError::TopicUnavailable("a queue refused it".into()))
        }
        Ok(Confirmation::NotRequested) => Err(PublishError::Unavailable(
            "the broker does not confirm".into(),
        )),
        Err(error) => Err(classify(error)),
    }
}

/// The broker closes a channel for what is on it, with a code.
fn classify(error: TransportError) -> PublishError {
    let kind = match error.downcast_ref::<lapin::Error>().map(lapin::Error::kind) {
        Some(ErrorKind::ProtocolError(reply)) => reply.kind(),
        _ => return PublishError::Unavailable(error),
    };
    match kind {
        // Its exchange does not exist, or a permission is missing.
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND | AMQPSoftError::ACCESSREFUSED) => {
            PublishError::TopicUnavailable(error)
        }
        // The effect is too large, or has a property that the server refuses.
        AMQPErrorKind::Soft(_) => PublishError::Rejected(error),
        AMQPErrorKind::Hard(_) => PublishError::Unavailable(error),
    }
}
