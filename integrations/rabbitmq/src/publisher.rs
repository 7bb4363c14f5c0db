//! The publisher: sends effects as AMQP messages.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use idem_runtime::{
    OutgoingMessage, PublishError, Publisher,
    transport::{TransportError, check_topic},
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
    connect::{CONNECT_TIMEOUT, connect},
    properties,
};

/// The longest time that an available server takes to open a channel. Together with the default
/// timeout of a confirmation it is shorter than the default timeout of a relay.
const PROBE: Duration = Duration::from_secs(5);

/// Publishes effects to RabbitMQ.
///
/// The topic of an effect is the routing key at the configured exchange. At the default exchange it
/// is the name of a queue. Effects are persistent messages. An effect is published when every queue
/// that it was routed to has confirmed it.
///
/// The property *message id* is the id of the effect, *timestamp* is the time of the publication in
/// whole seconds, and *type* and *content type* come from the effect. The header `correlation-id`
/// of the effect becomes the property *correlation id*. The other headers of the effect are sent
/// together with `idem-key`, `idem-source-destination`, `idem-recorded-at` and `traceparent`. Numbers
/// and booleans keep their types: integers of 64 bits, doubles and booleans. Other values are sent
/// as text.
///
/// The publisher connects at the first publish. When the connection is lost, it reconnects at the
/// next publish.
///
/// # Errors
///
/// - [`PublishError::TopicUnavailable`]: the exchange does not exist, no queue takes the effect, a
///   queue is full or does not confirm in time, or a permission is missing.
/// - [`PublishError::Rejected`]: RabbitMQ rejects this effect for a reason that is not listed here.
/// - [`PublishError::Permanent`]: RabbitMQ rejects the size or the properties of the effect (406), or
///   its headers do not fit into a frame, which has 128 kB unless the server is configured
///   otherwise.
/// - [`PublishError::Unavailable`]: the broker cannot be reached, or a memory or disk alarm blocks
///   the connection.
pub struct RabbitMqPublisher {
    config: RabbitMqConfig,
    /// The connection. The lock is held while one effect connects on behalf of all effects. Each
    /// effect holds a reference to the connection, so that a cancelled effect does not close the
    /// connection of other effects.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    /// The channels that no effect uses. A channel transports one effect at a time. So it is
    /// certain which effect the broker returned, or which effect caused the close of a channel.
    idle: Mutex<Vec<Channel>>,
    channels: Semaphore,
    /// The largest frame of the last connection, in bytes. Before the first connection it has no
    /// limit.
    frame_max: AtomicU32,
    /// The state of the last connection. `None` before the first connection.
    status: Mutex<Option<ConnectionStatus>>,
    /// The end and the result of the last probe. The lock is held during a probe, so that there is
    /// one probe at a time.
    probed: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl RabbitMqPublisher {
    /// Returns a publisher for this server. Does not connect.
    pub fn new(config: RabbitMqConfig) -> Self {
        Self {
            connection: tokio::sync::Mutex::new(None),
            idle: Mutex::new(Vec::new()),
            channels: Semaphore::new(config.max_unconfirmed.into()),
            frame_max: AtomicU32::new(u32::MAX),
            status: Mutex::new(None),
            probed: tokio::sync::Mutex::new(None),
            config,
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an idle channel, or opens a new one.
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
        match timeout(self.connect_timeout(), opening).await {
            Ok(opened) => Ok(opened?),
            Err(_) => {
                self.leave(&connection).await;
                Err("the broker did not open a channel in time".into())
            }
        }
    }

    /// Returns the longest time to wait for a new channel. It is shorter than the timeout in
    /// `channel`. Otherwise that timeout would end the wait before the connection is recognized as
    /// dead, and the next effect would wait for the same connection again.
    fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT.min(self.config.timeout() / 2)
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

    /// Removes a connection that may be dead. The connection stays open until the effects that are
    /// sent over it are confirmed or cancelled.
    async fn leave(&self, left: &Arc<Connection>) {
        let mut connection = self.connection.lock().await;
        connection.take_if(|connection| Arc::ptr_eq(connection, left));
    }

    /// Returns an error if the headers are larger than one frame. The broker closes a connection
    /// that sends such headers, and then all effects on this connection fail. So the broker would
    /// seem to be unavailable as long as such an effect is retried. The payload has no such limit,
    /// because it is split into frames.
    fn fits(&self, properties: &BasicProperties) -> Result<(), PublishError> {
        let (bytes, at_most) = (
            properties::frame_bytes(properties),
            self.frame_max.load(Ordering::Relaxed),
        );
        if bytes <= usize::try_from(at_most).unwrap_or(usize::MAX) {
            return Ok(());
        }
        Err(PublishError::Permanent(
            format!("the headers need a frame of {bytes} bytes, and the broker accepts {at_most}")
                .into(),
        ))
    }

    /// Returns an error if the server has a memory or disk alarm. Such a server reads nothing from
    /// its publishers until the alarm ends.
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

    /// Returns whether the server opens a channel on its connection. A server with an alarm opens
    /// no channel. Effects that need the result at the same time share one probe.
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

    /// Keeps the channel of a probe if no channel is idle. Effects that time out at different times
    /// cause one probe each, and keeping all their channels would exceed the limit of channels.
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
        // At another exchange such a topic is only a routing key.
        let is_a_key = !self.config.exchange.is_empty();
        check_topic(
            &message.topic,
            &["amq."],
            self.config.system_topics || is_a_key,
        )?;
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
        // A channel is reused only after a confirmation. After an error, a timeout or a cancelled
        // publish its state is unknown.
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
                format!("a queue did not confirm the effect within {waited:?}; the broker replies")
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
            // The server ignores the exchange type in a passive declaration.
            let found = channel.exchange_declare(
                exchange,
                ExchangeKind::Direct,
                options,
                FieldTable::default(),
            );
            let found = timeout(CONNECT_TIMEOUT, found).await;
            found
                .map_err(|error| PublishError::Unavailable(error.into()))?
                .map_err(|error| classify(error.into()))?;
        }
        self.idle().push(channel);
        Ok(())
    }
}

/// Converts RabbitMQ's reply to an effect to a result, according to the table in `docs/relays.md`.
fn judge(sent: Result<Confirmation, TransportError>) -> Result<(), PublishError> {
    match sent {
        Ok(Confirmation::Ack(None)) => Ok(()),
        // The effect is published as mandatory, so the broker returns it if no queue is bound for
        // its routing key.
        Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
            Err(PublishError::TopicUnavailable(
                format!(
                    "no queue took the effect: {} {}",
                    returned.reply_code, returned.reply_text
                )
                .into(),
            ))
        }
        // The queue is full and has the overflow `reject-publish`, or has no leader.
        Ok(Confirmation::Nack(None)) => Err(PublishError::TopicUnavailable(
            "a queue rejected the effect".into(),
        )),
        Ok(Confirmation::NotRequested) => Err(PublishError::Unavailable(
            "the broker does not confirm messages".into(),
        )),
        Err(error) => Err(classify(error)),
    }
}

/// Converts an error to a [`PublishError`]. When the broker closes a channel, the code names the
/// cause.
fn classify(error: TransportError) -> PublishError {
    let kind = match error.downcast_ref::<lapin::Error>().map(lapin::Error::kind) {
        Some(ErrorKind::ProtocolError(reply)) => reply.kind(),
        _ => return PublishError::Unavailable(error),
    };
    match kind {
        // The exchange does not exist, or a permission is missing.
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND | AMQPSoftError::ACCESSREFUSED) => {
            PublishError::TopicUnavailable(error)
        }
        // The effect is too large, or has a property that the server rejects.
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => PublishError::Permanent(error),
        AMQPErrorKind::Soft(_) => PublishError::Rejected(error),
        AMQPErrorKind::Hard(_) => PublishError::Unavailable(error),
    }
}
