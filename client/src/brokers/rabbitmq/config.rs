//! What has to be known to reach a RabbitMQ, and to consume from it.

use std::{fmt, path::PathBuf, time::Duration};

use serde::Deserialize;

/// How to reach a RabbitMQ, and how to publish to it.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// let config: idem_client::RabbitMqConfig =
///     serde_json::from_str(r#"{"url": "amqps://user:secret@rabbit/vhost", "exchange": "events"}"#)?;
/// # let _ = config;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RabbitMqConfig {
    /// `amqp://user:password@host:port/vhost`, or `amqps://`; the virtual host `/` is written
    /// `%2f`.
    ///
    /// With `amqps://` the server's certificate and its host name are verified.
    /// `?auth_mechanism=external` logs in as the user that the client's certificate names.
    pub url: String,
    /// A PEM file of the authorities to trust; those of the system unless given.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// A PEM file of the client's certificate.
    #[serde(default)]
    pub client_certificate: Option<PathBuf>,
    /// A PEM file of the key of that certificate.
    #[serde(default)]
    pub client_key: Option<PathBuf>,
    /// Where effects are published, with their topic as routing key. The default exchange unless
    /// given, where the topic is the name of a queue.
    #[serde(default)]
    pub exchange: String,
    /// How many effects may wait for their confirmation at once, each on a channel of its own; 256
    /// unless given. RabbitMQ allows 2,047 channels a connection.
    #[serde(default = "max_unconfirmed")]
    pub max_unconfirmed: u16,
    /// How long to wait for the broker: for a connection, and for a confirmation. In seconds, 20
    /// unless given. With 5 s to find out why, that has to be less than the relay's
    /// [`publish_timeout`](crate::Relay::publish_timeout).
    #[serde(default = "timeout_s")]
    pub timeout_s: u16,
}

fn max_unconfirmed() -> u16 {
    256
}

fn timeout_s() -> u16 {
    20
}

impl RabbitMqConfig {
    /// A RabbitMQ, and its default exchange.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            client_certificate: None,
            client_key: None,
            exchange: String::new(),
            max_unconfirmed: max_unconfirmed(),
            timeout_s: timeout_s(),
        }
    }

    /// Trusts the authorities of this PEM file instead of the system's.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Presents this certificate to the server. Both are PEM files.
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some(certificate.into());
        self.client_key = Some(key.into());
        self
    }

    /// Publishes to this exchange, with the topic as routing key.
    #[must_use]
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// How many effects may wait for their confirmation at once.
    #[must_use]
    pub fn max_unconfirmed(mut self, effects: u16) -> Self {
        self.max_unconfirmed = effects;
        self
    }

    /// How long to wait for the broker, in seconds.
    #[must_use]
    pub fn timeout_s(mut self, seconds: u16) -> Self {
        self.timeout_s = seconds;
        self
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s.into())
    }
}

/// The url may hold a password.
impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqConfig")
            .field("ca", &self.ca)
            .field("client_certificate", &self.client_certificate)
            .field("exchange", &self.exchange)
            .field("max_unconfirmed", &self.max_unconfirmed)
            .field("timeout_s", &self.timeout_s)
            .finish_non_exhaustive()
    }
}

/// What to consume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RabbitMqSubscription {
    /// The queue; it has to exist.
    pub queue: String,
    /// The broker delivers this many messages before it waits for one to be settled; 100 unless
    /// given. Zero is no limit.
    #[serde(default = "prefetch")]
    pub prefetch: u16,
    /// The queue has a dead-letter exchange, which keeps rejected messages: without one RabbitMQ
    /// deletes them. False unless given: the consumer keeps rejected messages in
    /// `idem.dead_letter`.
    #[serde(default)]
    pub dead_letter_exchange: bool,
    /// How long a message that did not fail is kept unacknowledged and delivered again by this
    /// process, where RabbitMQ counts each return to the queue. After that the message returns, and
    /// the queue counts it. In seconds, 900 unless given; it has to be shorter than the consumer
    /// timeout of the server, which is 1,800. Zero returns such messages at once.
    #[serde(default = "hold_s")]
    pub hold_s: u16,
}

fn prefetch() -> u16 {
    100
}

fn hold_s() -> u16 {
    900
}

impl RabbitMqSubscription {
    /// All messages of this queue.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            prefetch: prefetch(),
            dead_letter_exchange: false,
            hold_s: hold_s(),
        }
    }

    /// The queue has a dead-letter exchange: rejected messages go there, and not into
    /// `idem.dead_letter`. Without such an exchange RabbitMQ deletes them.
    #[must_use]
    pub fn dead_letter_exchange(mut self) -> Self {
        self.dead_letter_exchange = true;
        self
    }

    /// How long a message that did not fail is kept unacknowledged where RabbitMQ counts each
    /// return, in seconds.
    #[must_use]
    pub fn hold_s(mut self, seconds: u16) -> Self {
        self.hold_s = seconds;
        self
    }

    pub(super) fn hold(&self) -> Duration {
        Duration::from_secs(self.hold_s.into())
    }

    /// The broker delivers this many messages before it waits for one to be settled.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        let config = RabbitMqConfig::new("amqp://user:secret@host/%2f");
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn a_file_needs_to_say_the_url_only_and_a_slip_in_a_name_is_refused() {
        let read = serde_json::from_str::<RabbitMqConfig>;
        assert_eq!(
            read(r#"{"url": "amqp://x"}"#).unwrap(),
            RabbitMqConfig::new("amqp://x")
        );
        assert!(read(r#"{"url": "amqp://x", "exchnage": "y"}"#).is_err());
        let read = serde_json::from_str::<RabbitMqSubscription>;
        assert_eq!(
            read(r#"{"queue": "q"}"#).unwrap(),
            RabbitMqSubscription::new("q")
        );
        let patient = read(r#"{"queue": "q", "hold-s": 60}"#).unwrap();
        assert_eq!(patient, RabbitMqSubscription::new("q").hold_s(60));
    }
}
