//! A producer that is replaced after a fatal error of librdkafka.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use idem_runtime::{PublishError, transport::TransportError};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, KafkaResult},
    producer::{FutureProducer, FutureRecord, Producer as _},
};

use super::{KafkaConfig, config::not_created};
use crate::errors::publish_error;

/// The longest time to wait for the metadata of the cluster.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time to wait for the metadata of a topic after a record was not confirmed in time.
/// Together with `message.timeout.ms` it is shorter than the default timeout of a relay.
const TOPIC_TIMEOUT: Duration = Duration::from_secs(5);

/// The properties whose values differ from librdkafka's defaults. The user's configuration cannot
/// change the idempotence, but it can change the others.
const DEFAULTS: [(&str, &str); 5] = [
    // The retries of the client then write no duplicates and keep the order of a partition.
    ("enable.idempotence", "true"),
    // Shorter than the default of five minutes, because a relay holds a lease while it publishes.
    ("message.timeout.ms", "20000"),
    // Shorter than `message.timeout.ms`: otherwise a missing topic would look like a broker that is
    // not available.
    ("topic.metadata.propagation.max.ms", "5000"),
    // A topic with a spelling mistake is not created, but waited for.
    ("allow.auto.create.topics", "false"),
    // Records are batched without a delay: idempotence allows five requests in flight, and while
    // they are in flight, further records are collected in a batch.
    ("linger.ms", "0"),
];

/// Sends records and waits until the brokers confirm them.
pub(super) struct Producer {
    config: ClientConfig,
    current: Mutex<Arc<FutureProducer>>,
}

impl Producer {
    /// Returns a producer, which connects and reconnects in the background.
    pub(super) fn new(config: &KafkaConfig) -> Result<Self, TransportError> {
        let config = config.client(&DEFAULTS)?;
        let producer = config.create().map_err(not_created)?;
        Ok(Self {
            config,
            current: Mutex::new(Arc::new(producer)),
        })
    }

    /// Sends a record. Returns when all in-sync replicas have stored it.
    pub(super) async fn send(
        &self,
        record: FutureRecord<'_, [u8], [u8]>,
    ) -> Result<(), KafkaError> {
        let current = self.current();
        let sent = match current.send_result(record) {
            Ok(report) => match report.await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err((error, _))) => Err(error),
                Err(_) => Err(KafkaError::Canceled),
            },
            Err((error, _)) => Err(error),
        };
        if sent.is_err() && current.client().fatal_error().is_some() {
            self.replace(&current);
        }
        sent
    }

    /// Reads the metadata of the cluster. Fails if the cluster is not available.
    pub(super) async fn check(&self) -> Result<(), PublishError> {
        let described = self.describe(None, METADATA_TIMEOUT).await;
        described.map_err(publish_error)
    }

    /// Finds the cause for a record that was not confirmed in time, and returns the error. The
    /// client itself retries errors such as too few replicas in sync, and then reports the timeout
    /// instead of the error.
    pub(super) async fn unconfirmed(&self, topic: &str, error: KafkaError) -> PublishError {
        match self.describe(Some(topic.to_owned()), TOPIC_TIMEOUT).await {
            Ok(()) => PublishError::TopicUnavailable(
                format!("the cluster replies, but does not confirm records of {topic}: {error}")
                    .into(),
            ),
            Err(_) => PublishError::Unavailable(error.into()),
        }
    }

    /// Reads the metadata of this topic, or of all topics. The client of librdkafka blocks its
    /// thread while it waits for the reply.
    async fn describe(&self, topic: Option<String>, limit: Duration) -> KafkaResult<()> {
        let producer = self.current();
        let metadata = tokio::task::spawn_blocking(move || {
            let metadata = producer.client().fetch_metadata(topic.as_deref(), limit);
            metadata.map(drop)
        });
        // The task itself fails only if the runtime shuts down.
        metadata.await.unwrap_or(Err(KafkaError::Canceled))
    }

    fn current(&self) -> Arc<FutureProducer> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces this producer after a fatal error. After such an error a producer accepts no more
    /// records.
    fn replace(&self, failed: &Arc<FutureProducer>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // If several records failed, only the first of them replaces the producer.
        if !Arc::ptr_eq(&current, failed) {
            return;
        }
        match self.config.create() {
            Ok(producer) => *current = Arc::new(producer),
            Err(error) => {
                tracing::warn!(
                    error = %not_created(error),
                    "cannot replace a failed Kafka producer"
                )
            }
        }
    }
}
