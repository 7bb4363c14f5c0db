//! The settings of a durable consumer at the server. They can differ from the settings of the
//! subscription, because the source does not change a durable consumer that exists.

use std::time::Duration;

use async_nats::jetstream::{
    Context,
    consumer::{AckPolicy, Config, PullConsumer, pull},
};
use idem_runtime::transport::TransportError;

use super::NatsSubscription;

/// The number of reports of progress within the time that the server waits for a settlement. Two of
/// these reports can be lost or late.
const PROGRESS: u32 = 3;

/// The shortest interval between two reports of progress.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct Terms {
    /// The times that the server waits for a settlement, by the number of the delivery. The last
    /// time applies to all further deliveries.
    waits: Vec<Duration>,
    pub(super) max_deliver: Option<u32>,
    max_batch: Option<usize>,
    max_expires: Option<Duration>,
}

impl Terms {
    fn of(config: &Config) -> Self {
        let waits = match &config.backoff[..] {
            [] => vec![config.ack_wait],
            waits => waits.to_vec(),
        };
        Self {
            waits,
            max_deliver: u32::try_from(config.max_deliver)
                .ok()
                .filter(|max| *max > 0),
            max_batch: usize::try_from(config.max_batch)
                .ok()
                .filter(|max| *max > 0),
            max_expires: Some(config.max_expires).filter(|max| !max.is_zero()),
        }
    }

    /// Returns the interval between two reports of progress of this delivery.
    pub(super) fn progress_every(&self, delivery: u32) -> Duration {
        let at = usize::try_from(delivery)
            .unwrap_or(usize::MAX)
            .saturating_sub(1);
        let wait = self
            .waits
            .get(at)
            .or(self.waits.last())
            .copied()
            .unwrap_or_default();
        (wait / PROGRESS).max(SHORTEST_INTERVAL)
    }

    /// Returns whether the server stops delivering a message at a limit of deliveries.
    pub(super) fn limit_deliveries(&self) -> bool {
        self.max_deliver.is_some()
    }

    /// Returns whether this delivery is the last delivery or the delivery before it.
    pub(super) fn is_near_limit(&self, delivery: u32) -> bool {
        self.max_deliver
            .is_some_and(|max| delivery.saturating_add(1) >= max)
    }

    /// Returns whether this delivery is the last delivery.
    pub(super) fn is_last(&self, delivery: u32) -> bool {
        self.max_deliver.is_some_and(|max| delivery >= max)
    }

    /// Returns this number of messages, reduced to the limit for one request.
    pub(super) fn batch(&self, messages: usize) -> usize {
        self.max_batch.map_or(messages, |max| max.min(messages))
    }

    /// Returns the time that a request waits at the server: `unless_limited`, reduced to the limit
    /// of the durable consumer.
    pub(super) fn expires(&self, unless_limited: Duration) -> Duration {
        self.max_expires
            .map_or(unless_limited, |max| max.min(unless_limited))
    }
}

/// Returns the durable consumer of a subscription, and creates it if it does not exist.
pub(super) async fn consumer(
    context: &Context,
    subscription: &NatsSubscription,
) -> Result<(PullConsumer, Terms), TransportError> {
    let config = pull::Config {
        durable_name: Some(subscription.consumer.clone()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(subscription.ack_wait_s.into()),
        filter_subject: subscription.subject.clone(),
        ..pull::Config::default()
    };
    let stream = context.get_stream_no_info(&subscription.stream).await?;
    let consumer = stream
        .get_or_create_consumer(&subscription.consumer, config)
        .await
        .map_err(|error| {
            format!(
                "cannot use the durable consumer \"{}\" of the stream \"{}\": {error}",
                subscription.consumer, subscription.stream
            )
        })?;
    let config = &consumer.cached_info().config;
    if config.ack_policy != AckPolicy::Explicit {
        return Err(format!(
            "the durable consumer \"{}\" of the stream \"{}\" does not require an explicit \
             acknowledgement of each message, and could lose messages: delete it, or create it \
             with the acknowledge policy \"explicit\"",
            subscription.consumer, subscription.stream
        )
        .into());
    }
    let terms = Terms::of(config);
    Ok((consumer, terms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(change: impl FnOnce(&mut Config)) -> Terms {
        let mut config = Config {
            ack_wait: Duration::from_secs(30),
            max_deliver: -1,
            ..Config::default()
        };
        change(&mut config);
        Terms::of(&config)
    }

    #[test]
    fn each_delivery_has_its_own_backoff_interval() {
        let plain = terms(|_| {});
        assert_eq!(plain.progress_every(1), Duration::from_secs(10));
        assert_eq!(plain.progress_every(7), Duration::from_secs(10));
        let listed = terms(|config| config.backoff = [3, 6].map(Duration::from_secs).into());
        assert_eq!(listed.progress_every(1), Duration::from_secs(1));
        assert_eq!(listed.progress_every(2), Duration::from_secs(2));
        assert_eq!(listed.progress_every(9), Duration::from_secs(2));
    }

    #[test]
    fn last_two_deliveries_are_near_the_limit() {
        let near = |max: i64| {
            (1..=5)
                .filter(|&delivery| {
                    terms(|config| config.max_deliver = max).is_near_limit(delivery)
                })
                .count()
        };
        assert_eq!(
            (near(-1), near(0), near(5), near(2), near(1)),
            (0, 0, 2, 5, 5)
        );
    }
}
