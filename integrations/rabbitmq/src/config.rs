//! The settings of a connection to RabbitMQ and of a subscription to a queue.

use std::{fmt, path::PathBuf, time::Duration};

use serde::Deserialize;

/// The settings of a connection to RabbitMQ, and of publishing to it.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// let config: idem_rabbitmq::RabbitMqConfig = serde_json::from_str(
///     r#"{"url": "amqps://user:secret@rabbit/vhost", "exchange": "events"}"#,
/// )?;
/// # let _ = config;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RabbitMqConfig {
    /// The URL of the server: `amqp://user:password@host:port/vhost`, or the same with `amqps://`.
    /// The virtual host `/` is written `%2f`.
    ///
    /// With `amqps://` the connection uses TLS and verifies the certificate and the host name of
    /// the server. With `?auth_mechanism=external` the client logs in as the user that its
    /// certificate names.
    pub url: String,
    /// A PEM file of the certificate authorities to trust. Default: the authorities of the system.
    pub ca: Option<PathBuf>,
    /// A PEM file of the client's certificate.
    pub client_certificate: Option<PathBuf>,
    /// A PEM file of the private key of that certificate.
    pub client_key: Option<PathBuf>,
    /// The exchange to which effects are published, with their topic as the routing key. Default:
    /// the default exchange, where the topic is the name of a queue.
    #[serde(default)]
    pub exchange: String,
    /// The largest number of effects that wait for their confirmation at the same time. Default:
    /// 256. Each of them uses a channel. RabbitMQ allows 2,047 channels for a connection.
    #[serde(default = "max_unconfirmed")]
    pub max_unconfirmed: u16,
    /// The longest time to wait for the broker, in seconds: for a connection, and for a
    /// confirmation. Default: 20. When a confirmation is missing, the publisher takes up to 5 s to
    /// find the cause. `timeout_s` and these 5 s together must be less than the relay's
    /// [`publish_timeout`](idem_runtime::Relay::publish_timeout).
    #[serde(default = "timeout_s")]
    pub timeout_s: u16,
    /// Whether effects at the default exchange may have topics of the server: those that begin with
    /// `amq.`, such as `amq.rabbitmq.reply-to`. Default: false; such effects are parked.
    #[serde(default)]
    pub system_topics: bool,
}

fn max_unconfirmed() -> u16 {
    256
}

fn timeout_s() -> u16 {
    20
}

impl RabbitMqConfig {
    /// Returns the settings for the server at this [`url`](Self::url) and for its default exchange.
    /// All other settings have their defaults.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            client_certificate: None,
            client_key: None,
            exchange: String::new(),
            max_unconfirmed: max_unconfirmed(),
            timeout_s: timeout_s(),
            system_topics: false,
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s.into())
    }
}

/// Omits the URL, which can contain a password.
impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqConfig")
            .field("ca", &self.ca)
            .field("client_certificate", &self.client_certificate)
            .field("exchange", &self.exchange)
            .field("max_unconfirmed", &self.max_unconfirmed)
            .field("timeout_s", &self.timeout_s)
            .field("system_topics", &self.system_topics)
            .finish_non_exhaustive()
    }
}

/// The settings of a subscription to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RabbitMqSubscription {
    /// The name of the queue. The queue must exist. It cannot be a stream, because a stream keeps
    /// neither acknowledgements nor the place of a consumer.
    pub queue: String,
    /// The largest number of unsettled messages: the broker delivers this many, and then waits
    /// until a message is settled. Default: 100. With 0 there is no limit.
    pub prefetch: u16,
    /// Whether the queue has a dead-letter exchange, which keeps rejected messages. Default: false;
    /// the consumer then keeps rejected messages in `idem.dead_letter`. Set this only if the
    /// exchange exists: otherwise RabbitMQ deletes rejected messages.
    pub dead_letter_exchange: bool,
    /// The longest time, in seconds, that this process withholds a message that did not fail, if
    /// RabbitMQ counts each return to the queue. The message stays unacknowledged, and this process
    /// redelivers it. After this time it is returned to the queue, which counts the return.
    /// Default: 900. The time must be shorter than the consumer timeout of the server, which is
    /// 1,800 s by default. With 0 such messages are returned at once.
    pub hold_s: u16,
}

impl RabbitMqSubscription {
    /// Returns the settings for all messages of this queue. All other settings have their defaults.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            prefetch: 100,
            dead_letter_exchange: false,
            hold_s: 900,
        }
    }

    pub(super) fn hold(&self) -> Duration {
        Duration::from_secs(self.hold_s.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_settings_suffice_and_unknown_names_fail() {
        let read = serde_json::from_str::<RabbitMqConfig>;
        assert_eq!(
            read(r#"{"url": "amqp://x"}"#).unwrap(),
            RabbitMqConfig::new("amqp://x")
        );
        assert!(read(r#"{"url": "amqp://x", "exchnage": "y"}"#).is_err());
    }
}
