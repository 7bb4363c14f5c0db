//! What has to be known to reach a Kafka cluster, and to consume from it.

use std::{collections::BTreeMap, fmt};

use rdkafka::{ClientConfig, error::KafkaError};
use serde::Deserialize;

use crate::Error;

/// What exactly-once effects rest on: it is not for a configuration to change.
const RESERVED: [&str; 6] = [
    "bootstrap.servers",
    "metadata.broker.list",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
];

/// How to reach a Kafka cluster.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// let config: idem_client::KafkaConfig = serde_json::from_str(
///     r#"{"brokers": "kafka-1:9092,kafka-2:9092", "properties": {"compression.type": "lz4"}}"#,
/// )?;
/// # let _ = config;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KafkaConfig {
    /// `host:port`, several with commas between them.
    pub brokers: String,
    /// Further properties of librdkafka, by its names, such as `security.protocol`. Those that
    /// decide over delivery are refused: the group, automatic commits and idempotence.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

impl KafkaConfig {
    /// A cluster with librdkafka's defaults.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            properties: BTreeMap::new(),
        }
    }

    /// Sets one property of librdkafka.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// `defaults` with the cluster and the properties on top of them.
    pub(super) fn client(&self, defaults: &[(&str, &str)]) -> Result<ClientConfig, Error> {
        if let Some(name) = RESERVED
            .into_iter()
            .find(|name| self.properties.contains_key(*name))
        {
            return Err(Error::Invalid(format!(
                "the Kafka property {name} is not free: delivery depends on it"
            )));
        }
        self.check_security()?;
        let mut client = ClientConfig::new();
        client.extend(
            defaults
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        client.extend(self.properties.clone());
        client.set("bootstrap.servers", &self.brokers);
        Ok(client)
    }

    /// librdkafka ignores certificates and passwords that `security.protocol` does not call for,
    /// and connects in plaintext.
    fn check_security(&self) -> Result<(), Error> {
        let protocol = self.properties.get("security.protocol").map(String::as_str);
        let protocol = protocol.unwrap_or("plaintext").to_ascii_lowercase();
        for (prefix, protocols) in [
            ("ssl.", ["ssl", "sasl_ssl"]),
            ("sasl.", ["sasl_plaintext", "sasl_ssl"]),
        ] {
            let unused = self.properties.keys().find(|name| name.starts_with(prefix));
            if let Some(name) = unused.filter(|_| !protocols.contains(&protocol.as_str())) {
                let [first, second] = protocols;
                return Err(Error::Invalid(format!(
                    "the Kafka property {name} has no effect: security.protocol has to be {first} or {second}"
                )));
            }
        }
        Ok(())
    }
}

/// An error of a client that was not created. A setting is named without its value: it may be a
/// password or a key, also under a name that is misspelt.
pub(super) fn not_created(error: KafkaError) -> Error {
    Error::Invalid(match error {
        KafkaError::ClientConfig(_, reason, name, value) => {
            // librdkafka's reason can repeat the value.
            let is_shown = value.is_empty() || !reason.contains(&value);
            let reason = if is_shown {
                reason.as_str()
            } else {
                "its value is not valid"
            };
            format!("the Kafka property {name} cannot be used: {reason}")
        }
        other => format!("the Kafka client cannot be created: {other}"),
    })
}

/// Properties by name alone: passwords are among their values.
impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys())
            .finish_non_exhaustive()
    }
}

/// What to consume, as whom, and what becomes of messages that are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KafkaSubscription {
    /// The consumer group: its members share the partitions, and its offsets are committed.
    pub group: String,
    /// The topics.
    pub topics: Vec<String>,
    /// Where rejected messages go; [`DeadLetter::Database`] unless given.
    #[serde(default)]
    pub dead_letter: DeadLetter,
    /// Fetching pauses while this many messages are delivered and not settled; 1,000 unless given.
    #[serde(default = "max_unsettled")]
    pub max_unsettled: usize,
}

fn max_unsettled() -> usize {
    1000
}

impl KafkaSubscription {
    /// All messages of these topics, shared with the other members of the group.
    pub fn new(
        group: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            dead_letter: DeadLetter::default(),
            max_unsettled: max_unsettled(),
        }
    }

    /// Where rejected messages go.
    #[must_use]
    pub fn dead_letter(mut self, dead_letter: DeadLetter) -> Self {
        self.dead_letter = dead_letter;
        self
    }

    /// Fetching pauses while this many messages are delivered and not settled.
    #[must_use]
    pub fn max_unsettled(mut self, messages: usize) -> Self {
        self.max_unsettled = messages;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.group.is_empty() {
            return Err(Error::Invalid(
                "a Kafka subscription needs a group: its offsets are committed".into(),
            ));
        }
        if self.topics.is_empty() {
            return Err(Error::Invalid(
                "a Kafka subscription needs at least one topic".into(),
            ));
        }
        if self.max_unsettled == 0 {
            return Err(Error::Invalid(
                "max_unsettled 0 would never fetch a message".into(),
            ));
        }
        if let DeadLetter::Topic(topic) = &self.dead_letter
            && self.topics.contains(topic)
        {
            return Err(Error::Invalid(format!(
                "{topic} cannot take the dead letters of those who consume it: they would come again and again"
            )));
        }
        Ok(())
    }
}

/// What becomes of messages that are rejected. In a file: `"database"`, `"discard"`, or `{ topic =
/// "orders.dead" }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadLetter {
    /// The consumer keeps them in `idem.dead_letter`.
    #[default]
    Database,
    /// They are published to this topic, with their key, payload and headers, and with the reason
    /// in the header `idem-dead-letter-reason`.
    Topic(String),
    /// They are gone, with a warning that names topic, partition and offset.
    Discard,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i4_rejected_messages_go_to_the_database_by_default() {
        let read = serde_json::from_str::<KafkaSubscription>;
        let default = read(r#"{"group": "g", "topics": ["t"]}"#).unwrap();
        assert_eq!(
            (&default, &default.dead_letter),
            (&KafkaSubscription::new("g", ["t"]), &DeadLetter::Database)
        );
        let discard = read(r#"{"group": "g", "topics": ["t"], "dead-letter": "discard"}"#).unwrap();
        assert_eq!(
            discard,
            KafkaSubscription::new("g", ["t"]).dead_letter(DeadLetter::Discard)
        );
        let topic =
            read(r#"{"group": "g", "topics": ["t"], "dead-letter": {"topic": "dead"}}"#).unwrap();
        assert_eq!(topic.dead_letter, DeadLetter::Topic("dead".into()));
    }

    #[test]
    fn a_subscription_that_cannot_work_is_refused() {
        for (subscription, word) in [
            (KafkaSubscription::new("", ["t"]), "group"),
            (KafkaSubscription::new("g", [""; 0]), "topic"),
            (
                KafkaSubscription::new("g", ["t"]).max_unsettled(0),
                "max_unsettled",
            ),
            (
                KafkaSubscription::new("g", ["t"]).dead_letter(DeadLetter::Topic("t".into())),
                "dead letters",
            ),
        ] {
            let error = subscription.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_property_that_decides_over_delivery_is_refused() {
        for name in RESERVED {
            let config = KafkaConfig::new("localhost:9092").property(name, "true");
            assert!(config.client(&[]).unwrap_err().to_string().contains(name));
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let config = KafkaConfig::new("localhost:9092").property("sasl.password", "secret");
        let printed = format!("{config:?}");
        assert!(
            printed.contains("sasl.password") && !printed.contains("secret"),
            "{printed}"
        );
    }

    #[test]
    fn certificates_and_passwords_without_their_protocol_are_errors() {
        let config = |properties: &[(&str, &str)]| {
            let mut config = KafkaConfig::new("localhost:9092");
            for (name, value) in properties {
                config = config.property(*name, *value);
            }
            config.client(&[]).map(drop)
        };
        for properties in [
            [("ssl.ca.location", "/ca.pem"), ("client.id", "x")],
            [
                ("ssl.ca.location", "/ca.pem"),
                ("security.protocol", "plaintext"),
            ],
            [("sasl.password", "secret"), ("security.protocol", "ssl")],
        ] {
            let error = config(&properties).unwrap_err().to_string();
            assert!(
                error.contains("has no effect") && !error.contains("secret"),
                "{error}"
            );
        }
        config(&[("ssl.ca.location", "/ca.pem"), ("security.protocol", "SSL")]).unwrap();
        config(&[
            ("sasl.password", "secret"),
            ("security.protocol", "SASL_SSL"),
        ])
        .unwrap();
    }

    #[test]
    fn a_property_stands_above_a_default() {
        let config = KafkaConfig::new("localhost:9092").property("auto.offset.reset", "latest");
        let client = config
            .client(&[("auto.offset.reset", "earliest"), ("x", "y")])
            .unwrap();
        assert_eq!(client.get("auto.offset.reset"), Some("latest"));
        assert_eq!(client.get("x"), Some("y"));
    }
}
