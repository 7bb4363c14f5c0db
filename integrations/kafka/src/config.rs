//! The settings of a connection to Kafka and of a subscription to topics.

use std::{collections::BTreeMap, fmt};

use idem_runtime::Error;
use rdkafka::{ClientConfig, error::KafkaError};
use serde::Deserialize;

/// The properties that exactly-once effects depend on. A configuration cannot change them.
const RESERVED: [&str; 6] = [
    "bootstrap.servers",
    "metadata.broker.list",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
];

/// The settings of a connection to a Kafka cluster.
///
/// ```
/// let config = idem_kafka::KafkaConfig::new("kafka-1:9092,kafka-2:9092")
///     .property("compression.type", "lz4");
/// # let _ = config;
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KafkaConfig {
    /// The brokers, as `host:port`. Several brokers are separated by commas.
    pub brokers: String,
    /// Other properties of librdkafka by their names, for example `security.protocol`. The
    /// properties that delivery depends on cannot be set: the group, automatic commits and
    /// idempotence.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Whether effects may have topics of the cluster, which begin with `__`. Default: false; such
    /// effects are parked.
    #[serde(default)]
    pub system_topics: bool,
}

impl KafkaConfig {
    /// Returns the settings for the cluster with these [`brokers`](Self::brokers) and the default
    /// properties.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            properties: BTreeMap::new(),
            system_topics: false,
        }
    }

    /// Sets one property of librdkafka.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// Returns the configuration of a client: `defaults`, overridden by the properties, and the
    /// brokers.
    pub(super) fn client(&self, defaults: &[(&str, &str)]) -> Result<ClientConfig, Error> {
        if let Some(name) = RESERVED
            .into_iter()
            .find(|name| self.properties.contains_key(*name))
        {
            return Err(Error::Invalid(format!(
                "the Kafka property {name} cannot be set: delivery depends on it"
            )));
        }
        self.check_security()?;
        let mut client = ClientConfig::new();
        for (name, value) in defaults {
            client.set(*name, *value);
        }
        client.extend(self.properties.clone());
        client.set("bootstrap.servers", &self.brokers);
        Ok(client)
    }

    /// Fails for certificates and passwords that do not belong to `security.protocol`. librdkafka
    /// would ignore them and could connect in plain text.
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
                    "the Kafka property {name} has no effect: set security.protocol to {first} or \
                     {second}"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the error for a client that cannot be created. The error names a property but not its
/// value, because the value can be a password or a key, even if the name is misspelt.
pub(super) fn not_created(error: KafkaError) -> Error {
    Error::Invalid(match error {
        KafkaError::ClientConfig(_, reason, name, value) => {
            // The reason from librdkafka can contain the value.
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

/// Prints only the names of the properties, because their values can be passwords.
impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys())
            .field("system_topics", &self.system_topics)
            .finish_non_exhaustive()
    }
}

/// The settings of a subscription: the consumer group, the topics, and the place for rejected
/// messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSubscription {
    /// The name of the consumer group. The members of the group share the partitions, and the
    /// source commits the offsets of the group.
    pub group: String,
    /// The names of the topics.
    pub topics: Vec<String>,
    /// The treatment of rejected messages. Default: [`DeadLetter::Database`].
    pub dead_letter: DeadLetter,
    /// The number of unsettled messages at which the source stops fetching until a message is
    /// settled. Default: 1,000.
    pub max_unsettled: usize,
    /// The size of all unsettled messages, in bytes of their keys, payloads and headers, at which
    /// the source stops fetching. Default: 64 MiB. The client fetches up to 16 MiB ahead
    /// (`queued.max.messages.kbytes`).
    pub max_unsettled_bytes: usize,
}

impl KafkaSubscription {
    /// Returns the settings for all messages of these topics, shared with the other members of the
    /// group. All other settings have their defaults.
    pub fn new(
        group: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            dead_letter: DeadLetter::default(),
            max_unsettled: 1000,
            max_unsettled_bytes: 64 << 20,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.group.is_empty() {
            return Err(Error::Invalid(
                "a Kafka subscription needs a consumer group, which stores its offsets".into(),
            ));
        }
        if self.topics.is_empty() {
            return Err(Error::Invalid(
                "a Kafka subscription needs at least one topic".into(),
            ));
        }
        for (name, limit) in [
            ("max_unsettled", self.max_unsettled),
            ("max_unsettled_bytes", self.max_unsettled_bytes),
        ] {
            if limit == 0 {
                return Err(Error::Invalid(format!(
                    "{name} must be at least 1: with 0 no message would be fetched"
                )));
            }
        }
        if let DeadLetter::Topic(topic) = &self.dead_letter
            && self.topics.contains(topic)
        {
            return Err(Error::Invalid(format!(
                "the topic {topic} cannot take the dead letters of its own subscription, which \
                 would consume them again"
            )));
        }
        Ok(())
    }
}

/// The treatment of rejected messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetter {
    /// The consumer keeps rejected messages in `idem.dead_letter`.
    #[default]
    Database,
    /// The source publishes rejected messages to this topic, with their key, payload and headers,
    /// and with the reason in the header `idem-dead-letter-reason`.
    Topic(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i4_rejected_messages_go_to_the_database_by_default() {
        let default = KafkaSubscription::new("g", ["t"]);
        assert_eq!(default.dead_letter, DeadLetter::Database);
    }

    #[test]
    fn invalid_subscription_is_an_error() {
        for (subscription, word) in [
            (KafkaSubscription::new("", ["t"]), "group"),
            (KafkaSubscription::new("g", [""; 0]), "topic"),
            (
                KafkaSubscription {
                    max_unsettled: 0,
                    ..KafkaSubscription::new("g", ["t"])
                },
                "max_unsettled must",
            ),
            (
                KafkaSubscription {
                    max_unsettled_bytes: 0,
                    ..KafkaSubscription::new("g", ["t"])
                },
                "max_unsettled_bytes",
            ),
            (
                KafkaSubscription {
                    dead_letter: DeadLetter::Topic("t".into()),
                    ..KafkaSubscription::new("g", ["t"])
                },
                "dead letters",
            ),
        ] {
            let error = subscription.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn property_that_delivery_depends_on_is_an_error() {
        for name in RESERVED {
            let config = KafkaConfig::new("localhost:9092").property(name, "true");
            assert!(config.client(&[]).unwrap_err().to_string().contains(name));
        }
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
    fn property_overrides_a_default() {
        let config = KafkaConfig::new("localhost:9092").property("auto.offset.reset", "latest");
        let client = config
            .client(&[("auto.offset.reset", "earliest"), ("x", "y")])
            .unwrap();
        assert_eq!(client.get("auto.offset.reset"), Some("latest"));
        assert_eq!(client.get("x"), Some("y"));
    }
}
