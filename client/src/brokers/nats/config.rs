//! What has to be known to reach a NATS, and to consume from a stream.

use std::{fmt, time::Duration};

use async_nats::{
    ConnectOptions, ServerAddr,
    jetstream::{Context, context::ContextBuilder},
};
use serde::Deserialize;

use crate::TransportError;

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
    /// `nats://user:password@host:port`, or `tls://`; several servers with commas between them,
    /// which share the user and password of the first. Special characters in either are
    /// percent-encoded. A user without a password is a token.
    pub url: String,
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
            timeout_s: timeout_s(),
            max_unconfirmed: max_unconfirmed(),
        }
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

    /// Connects once; from then on the client connects again by itself whenever the connection is lost.
    pub(super) async fn connect_with(&self, options: ConnectOptions, role: &str) -> Result<Context, TransportError> {
        let timeout = Duration::from_secs(self.timeout_s.into());
        let urls = self.url.split(',').map(|url| url.trim().parse());
        let urls = urls.collect::<Result<Vec<ServerAddr>, _>>()?;
        let client = with_credentials(options, &urls)
            .name(format!("idem {role}"))
            .connection_timeout(timeout)
            .request_timeout(Some(timeout))
            .connect(urls)
            .await?;
        Ok(ContextBuilder::new()
            .timeout(timeout)
            .max_ack_inflight(self.max_unconfirmed.max(1).into())
            .build(client))
    }
}

/// The options with what the urls say about the user. The client itself does not read that.
fn with_credentials(options: ConnectOptions, urls: &[ServerAddr]) -> ConnectOptions {
    let credentials = |url: &ServerAddr| Some((decoded(url.username()?), url.password().map(decoded)));
    match urls.iter().find_map(credentials) {
        Some((user, Some(password))) => options.user_and_password(user, password),
        Some((token, None)) => options.token(token),
        None => options,
    }
}

/// A part of a url without percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail
            .get(..2)
            .filter(|digits| *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let encoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(encoded.unwrap_or(*first));
        rest = if encoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The url may hold a password.
impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
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
    /// The durable pull consumer. All who name it share its messages. It is made with the settings below when it is not there;
    /// when it is, it stays as it is.
    pub consumer: String,
    /// The subject to consume, with wildcards; all of the stream unless given.
    #[serde(default)]
    pub subject: String,
    /// This many messages are fetched before they are asked for; 100 unless given. Their [`ack_wait_s`](Self::ack_wait_s) runs.
    #[serde(default = "prefetch")]
    pub prefetch: u16,
    /// A message that is not settled after this time comes again. In seconds, 30 unless given.
    #[serde(default = "ack_wait_s")]
    pub ack_wait_s: u32,
    /// The subject where rejected messages go, with their headers and the reason in `idem-dead-letter-reason`; a stream has to
    /// take it. Without one the consumer keeps rejected messages in `idem.dead_letter`.
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

    /// This many messages are fetched before they are asked for.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// A message that is not settled after this time comes again, in seconds.
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
    fn percent_encoding_is_decoded() {
        assert_eq!(decoded("p%40ss%2Fw%c3%b6rd"), "p@ss/w\u{f6}rd");
        assert_eq!(decoded("100%"), "100%");
    }

    #[test]
    fn a_password_is_not_printed() {
        assert!(!format!("{:?}", NatsConfig::new("nats://user:secret@host")).contains("secret"));
    }

    #[test]
    fn a_file_says_what_has_no_default_and_a_slip_in_a_name_is_refused() {
        let read = serde_json::from_str::<NatsConfig>;
        assert_eq!(read(r#"{"url": "nats://x"}"#).unwrap(), NatsConfig::new("nats://x"));
        assert!(read(r#"{"url": "nats://x", "timeout": 3}"#).is_err());
        let read = serde_json::from_str::<NatsSubscription>;
        assert_eq!(
            read(r#"{"stream": "s", "consumer": "c"}"#).unwrap(),
            NatsSubscription::new("s", "c")
        );
        assert!(read(r#"{"stream": "s"}"#).is_err());
    }
}
