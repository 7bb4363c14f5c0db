//! What has to be known to reach a NATS, and to consume from a stream.

use std::{fmt, path::PathBuf};

use serde::Deserialize;

/// How to reach a NATS server or cluster with JetStream.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// let config: idem_client::NatsConfig = serde_json::from_str(r#"{"url": "nats://user:secret@nats:4222"}"#)?;
/// # let _ = config;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NatsConfig {
    /// `nats://user:password@host:port`, or `nats://token@host:port`; several servers with commas
    /// between them.
    ///
    /// With `tls://` at one of them, every connection uses TLS and verifies the server's
    /// certificate. Servers that the cluster names are then not used, because it names them before
    /// TLS begins: list all servers of the cluster.
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
    /// A file with the seed of an nkey, to log in with.
    #[serde(default)]
    pub nkey_seed_file: Option<PathBuf>,
    /// A credentials file (`.creds`) to log in with.
    #[serde(default)]
    pub credentials: Option<PathBuf>,
    /// How long to wait for an answer of the server. In seconds, 10 unless given.
    #[serde(default = "timeout_s")]
    pub timeout_s: u16,
    /// How many effects may wait for their confirmation at once; 1,000 unless given.
    #[serde(default = "max_unconfirmed")]
    pub max_unconfirmed: u16,
}

fn timeout_s() -> u16 {
    10
}

fn max_unconfirmed() -> u16 {
    1000
}

impl NatsConfig {
    /// A server or cluster.
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

    /// Logs in with the nkey whose seed is in this file.
    #[must_use]
    pub fn nkey_seed_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.nkey_seed_file = Some(file.into());
        self
    }

    /// Logs in with this credentials file.
    #[must_use]
    pub fn credentials(mut self, file: impl Into<PathBuf>) -> Self {
        self.credentials = Some(file.into());
        self
    }

    /// How long to wait for an answer of the server, in seconds.
    #[must_use]
    pub fn timeout_s(mut self, seconds: u16) -> Self {
        self.timeout_s = seconds;
        self
    }

    /// How many effects may wait for their confirmation at once.
    #[must_use]
    pub fn max_unconfirmed(mut self, effects: u16) -> Self {
        self.max_unconfirmed = effects;
        self
    }
}

/// The url may hold a password.
impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
            .field("ca", &self.ca)
            .field("client_certificate", &self.client_certificate)
            .field("nkey_seed_file", &self.nkey_seed_file)
            .field("credentials", &self.credentials)
            .field("timeout_s", &self.timeout_s)
            .field("max_unconfirmed", &self.max_unconfirmed)
            .finish_non_exhaustive()
    }
}

/// What to consume, as whom, and what becomes of messages that are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NatsSubscription {
    /// The stream; it has to exist.
    pub stream: String,
    /// The durable pull consumer. All sources that name it share its messages. It is made with the
    /// settings below when it is not there. One that exists stays as it is; it is an error when it
    /// does not acknowledge each message explicitly.
    pub consumer: String,
    /// The subject to consume, with wildcards; all of the stream unless given.
    #[serde(default)]
    pub subject: String,
    /// How many messages the source fetches ahead and withholds together, at most; 100 unless
    /// given. While they wait, the source reports progress, so the server does not deliver them
    /// again.
    #[serde(default = "prefetch")]
    pub prefetch: u16,
    /// A message whose process has died comes again after this time. In seconds, 30 unless given.
    /// The source tells the server of progress three times in it for each message that it holds.
    #[serde(default = "ack_wait_s")]
    pub ack_wait_s: u32,
    /// The subject where rejected messages go, with their headers and the reason in
    /// `idem-dead-letter-reason`; a stream has to take it. Without one the consumer keeps rejected
    /// messages in `idem.dead_letter`.
    #[serde(default)]
    pub dead_letter: Option<String>,
}

fn prefetch() -> u16 {
    100
}

fn ack_wait_s() -> u32 {
    30
}

impl NatsSubscription {
    /// All messages of this stream, as this durable consumer.
    pub fn new(stream: impl Into<String>, consumer: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            consumer: consumer.into(),
            subject: String::new(),
            prefetch: prefetch(),
            ack_wait_s: ack_wait_s(),
            dead_letter: None,
        }
    }

    /// The messages of this subject only; it may have wildcards.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// How many messages the source fetches ahead and withholds together, at most.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// A message whose process has died comes again after this time, in seconds.
    #[must_use]
    pub fn ack_wait_s(mut self, seconds: u32) -> Self {
        self.ack_wait_s = seconds;
        self
    }

    /// The subject where rejected messages go, instead of `idem.dead_letter`.
    #[must_use]
    pub fn dead_letter(mut self, subject: impl Into<String>) -> Self {
        self.dead_letter = Some(subject.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        assert!(!format!("{:?}", NatsConfig::new("nats://user:secret@host")).contains("secret"));
    }

    #[test]
    fn a_file_says_what_has_no_default_and_a_slip_in_a_name_is_refused() {
        let read = serde_json::from_str::<NatsConfig>;
        assert_eq!(
            read(r#"{"url": "nats://x"}"#).unwrap(),
            NatsConfig::new("nats://x")
        );
        assert!(read(r#"{"url": "nats://x", "timeout": 3}"#).is_err());
        let read = serde_json::from_str::<NatsSubscription>;
        assert_eq!(
            read(r#"{"stream": "s", "consumer": "c"}"#).unwrap(),
            NatsSubscription::new("s", "c")
        );
        assert!(read(r#"{"stream": "s"}"#).is_err());
    }
}
