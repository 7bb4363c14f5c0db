//! The settings of a connection to NATS and of a subscription to a stream.

use std::{fmt, path::PathBuf};

use serde::Deserialize;

/// The settings of a connection to a NATS server or cluster with JetStream.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// let config: idem_nats::NatsConfig =
///     serde_json::from_str(r#"{"url": "nats://user:secret@nats:4222"}"#)?;
/// # let _ = config;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NatsConfig {
    /// The URL of the server: `nats://user:password@host:port` or `nats://token@host:port`. Several
    /// servers of one cluster are separated by commas.
    ///
    /// If one of the URLs begins with `tls://`, every connection uses TLS and verifies the server's
    /// certificate. The client then connects only to the servers in this setting, so list all
    /// servers of the cluster. A server announces the other servers of its cluster too, but before
    /// TLS begins, so this list is not used.
    pub url: String,
    /// A PEM file of the certificate authorities to trust. Default: the authorities of the system.
    pub ca: Option<PathBuf>,
    /// A PEM file of the client's certificate.
    pub client_certificate: Option<PathBuf>,
    /// A PEM file of the private key of that certificate.
    pub client_key: Option<PathBuf>,
    /// A file with the nkey seed that the client logs in with.
    pub nkey_seed_file: Option<PathBuf>,
    /// A credentials file (`.creds`) that the client logs in with.
    pub credentials: Option<PathBuf>,
    /// The longest time to wait for a reply from the server, in seconds. Default: 10.
    #[serde(default = "timeout_s")]
    pub timeout_s: u16,
    /// The largest number of effects that wait for their confirmation at the same time. Default:
    /// 1,000.
    #[serde(default = "max_unconfirmed")]
    pub max_unconfirmed: u16,
    /// Whether effects may have subjects of the server: those that begin with `$`, such as
    /// `$JS.API.STREAM.DELETE.orders`, or with `_INBOX.`. Default: false; such effects are parked.
    #[serde(default)]
    pub system_topics: bool,
}

fn timeout_s() -> u16 {
    10
}

fn max_unconfirmed() -> u16 {
    1000
}

impl NatsConfig {
    /// Returns the settings for the server or cluster at this [`url`](Self::url). All other
    /// settings have their defaults.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            client_certificate: None,
            client_key: None,
            nkey_seed_file: None,
            credentials: None,
            timeout_s: timeout_s(),
            max_unconfirmed: max_unconfirmed(),
            system_topics: false,
        }
    }
}

/// Omits the URL, which can contain a password.
impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
            .field("ca", &self.ca)
            .field("client_certificate", &self.client_certificate)
            .field("nkey_seed_file", &self.nkey_seed_file)
            .field("credentials", &self.credentials)
            .field("timeout_s", &self.timeout_s)
            .field("max_unconfirmed", &self.max_unconfirmed)
            .field("system_topics", &self.system_topics)
            .finish_non_exhaustive()
    }
}

/// The settings of a subscription: the stream, the durable consumer, and the place for rejected
/// messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsSubscription {
    /// The name of the stream. The stream must exist.
    pub stream: String,
    /// The name of the durable pull consumer. All sources that name it share its messages. If it
    /// does not exist, the source creates it with the settings below. The source does not change a
    /// durable consumer that exists, and fails if that consumer does not require an explicit
    /// acknowledgement of each message.
    pub consumer: String,
    /// The subject to consume, which may contain wildcards. Default: all subjects of the stream.
    pub subject: String,
    /// The largest number of messages that the source holds: messages fetched ahead, and released
    /// messages that it keeps to redeliver itself. Default: 100. While the messages wait, the
    /// source reports progress to the server, so the server does not redeliver them.
    pub prefetch: u16,
    /// The time, in seconds, after which the server redelivers the messages of a process that died.
    /// Default: 30. For each message that it holds, the source reports progress to the server three
    /// times within this time.
    pub ack_wait_s: u32,
    /// The subject to which rejected messages are published, with their headers and with the reason
    /// in the header `idem-dead-letter-reason`. A stream must take this subject. Default: none; the
    /// consumer then keeps rejected messages in `idem.dead_letter`.
    pub dead_letter: Option<String>,
}

impl NatsSubscription {
    /// Returns the settings for all messages of this stream, consumed through this durable
    /// consumer. All other settings have their defaults.
    pub fn new(stream: impl Into<String>, consumer: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            consumer: consumer.into(),
            subject: String::new(),
            prefetch: 100,
            ack_wait_s: 30,
            dead_letter: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_settings_suffice_and_unknown_names_fail() {
        let read = serde_json::from_str::<NatsConfig>;
        assert_eq!(
            read(r#"{"url": "nats://x"}"#).unwrap(),
            NatsConfig::new("nats://x")
        );
        assert!(read(r#"{"url": "nats://x", "timeout": 3}"#).is_err());
    }
}
