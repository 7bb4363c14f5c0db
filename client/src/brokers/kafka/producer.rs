//! A producer that is replaced when librdkafka gives it up.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    error::KafkaError,
    producer::{FutureProducer, FutureRecord, Producer as _},
};

use super::{KafkaConfig, config::not_created};
use crate::{PublishError, TransportError};

/// How long a cluster that serves takes at most to describe itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it takes at most to describe a topic after a record was not confirmed in time. With
/// `message.timeout.ms` that is less than a relay's default time limit.
const TOPIC_PATIENCE: Duration = Duration::from_secs(5);

/// What differs from librdkafka's own defaults. Idempotence is not for a configuration to change,
/// the others are.
const DEFAULTS: [(&str, &str); 4] = [
    // The client's own retries leave no duplicates and keep the order of a partition.
    ("enable.idempotence", "true"),
    // Not five minutes: whoever publishes holds a lease meanwhile.
    ("message.timeout.ms", "20000"),
    // Less than that, or a topic that is missing would look like a broker that is away.
    ("topic.metadata.propagation.max.ms", "5000"),
    // Five is what idempotence allows; batches form by themselves while these are under way.
    ("linger.ms", "0"),
];

/// Sends records and waits until the brokers have them.
pub(super) struct Producer {
    config: ClientConfig,
    current: Mutex<Generation>,
}

#[derive(Clone)]
struct Generation {
    number: u64,
    producer: FutureProducer,
}

impl Producer {
    /// Connects in the background, and again whenever that is needed.
    pub(super) fn new(config: &KafkaConfig) -> Result<Self, TransportError> {
        let config = config.client(&DEFAULTS)?;
        let producer = config.create().map_err(not_created)?;
        Ok(Self {
            config,
            current: Mutex::new(Generation {
                number: 0,
                producer,
            }),
        })
    }

    /// Answers when all in-sync replicas have the record.
    pub(super) async fn send(
        &self,
        record: FutureRecord<'_, [u8], [u8]>,
    ) -> Result<(), KafkaError> {
        let current = self.current();
        let sent = match current.producer.send_result(record) {
            Ok(report) => match report.await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err((error, _))) => Err(error),
                Err(_) => Err(KafkaError::Canceled),
            },
            Err((error, _)) => Err(error),
        };
        if sent.is_err() && current.producer.client().fatal_error().is_some() {
            self.replace(current.number);
        }
        sent
    }

    /// Asks the cluster for its topics.
    pub(super) async fn check(&self) -> Result<(), PublishError> {
        let producer = self.current().producer;
        let asked = tokio::task::spawn_blocking(move || {
            producer.client().fetch_metadata(None, PATIENCE).map(drop)
        });
        match asked.await {
            Ok(described) => Ok(described?),
            Err(error) => Err(PublishError::Unavailable(error.into())),
        }
    }

    /// What it means that a record was not confirmed in time. The client retries a refusal such as
    /// too few replicas in sync itself, and reports the time limit in its place.
    pub(super) async fn unconfirmed(&self, topic: &str, error: KafkaError) -> PublishError {
        let producer = self.current().producer;
        let name = topic.to_owned();
        let describe = move || {
            producer
                .client()
                .fetch_metadata(Some(&name), TOPIC_PATIENCE)
                .map(drop)
        };
        match tokio::task::spawn_blocking(describe).await {
            Ok(Ok(())) => PublishError::TopicUnavailable(
                format!("the cluster serves, but does not confirm records of {topic}: {error}")
                    .into(),
            ),
            _ => PublishError::Unavailable(error.into()),
        }
    }

    fn current(&self) -> Generation {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// After a fatal error a producer refuses everything, for ever.
    fn replace(&self, number: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Of many that were under way, the first replaces it.
        if current.number != number {
            return;
        }
        match self.config.create() {
            Ok(producer) => {
                let number = number + 1;
                *current = Generation { number, producer };
            }
            Err(error) => {
                tracing::warn!(error = %not_created(error), "no new Kafka producer in the place of one that failed")
            }
        }
    }
}
