//! The span and the metrics of the effects that a relay publishes.

use std::time::Instant;

use metrics::{Gauge, counter, gauge, histogram};
use time::OffsetDateTime;
use tracing::{Span, field, info_span};

use super::{metric, trace};
use crate::{OutgoingMessage, PublishError};

/// Measures one attempt to publish an effect.
pub(crate) struct Publishing {
    span: Span,
    relay: String,
    started: Instant,
    in_flight: Gauge,
}

impl Publishing {
    /// Starts the span, which continues the trace of the transaction that recorded the effect. The
    /// consumer of the effect continues the trace of that transaction too, because the header
    /// `traceparent` is published unchanged.
    pub(crate) fn begin(relay: &str, message: &OutgoingMessage) -> Self {
        let span = info_span!(
            "idem.publish",
            otel.name = format!("send {}", message.topic),
            otel.kind = "producer",
            otel.status_code = field::Empty,
            messaging.system = "idem",
            messaging.operation.name = "publish",
            messaging.operation.type = "send",
            messaging.destination.name = message.topic,
            messaging.message.id = %message.message_id,
            messaging.message.body.size = message.payload.len(),
            idem.relay = relay,
            idem.outcome = field::Empty,
            error.type = field::Empty,
        );
        trace::continues(&span, message);
        let in_flight = gauge!(metric::RELAY_IN_FLIGHT, "relay" => relay.to_owned());
        in_flight.increment(1.0);
        Self {
            span,
            relay: relay.to_owned(),
            started: Instant::now(),
            in_flight,
        }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn end(self, result: &Result<(), PublishError>) {
        let outcome = match result {
            Ok(()) => "published",
            Err(PublishError::Unavailable(_)) => "unavailable",
            Err(PublishError::TopicUnavailable(_)) => "topic_unavailable",
            Err(PublishError::Rejected(_)) => "rejected",
            Err(PublishError::Permanent(_)) => "permanent",
        };
        self.span.record("idem.outcome", outcome);
        if result.is_err() {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", outcome);
        }
        let relay = || self.relay.clone();
        counter!(metric::RELAY_PUBLISHED, "relay" => relay(), "outcome" => outcome).increment(1);
        histogram!(metric::RELAY_PUBLISH_DURATION, "relay" => relay())
            .record(self.started.elapsed());
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.in_flight.decrement(1.0);
    }
}

/// Records a batch that was leased.
pub(crate) fn publishes_batch(relay: &str, partition: i32, messages: &[OutgoingMessage]) {
    histogram!(metric::RELAY_BATCH, "relay" => relay.to_owned()).record(messages.len() as f64);
    let oldest = messages.iter().map(|message| message.recorded_at).min();
    // The clocks of the server and of this machine differ, so the age could be negative without the
    // limit.
    let age = oldest.map_or(0.0, |oldest| {
        (OffsetDateTime::now_utc() - oldest)
            .as_seconds_f64()
            .max(0.0)
    });
    lag(relay, partition, age);
}

/// Records that this process has nothing to publish.
pub(crate) fn nothing_waits(relay: &str, partition: i32) {
    lag(relay, partition, 0.0);
}

fn lag(relay: &str, partition: i32, seconds: f64) {
    gauge!(metric::RELAY_LAG, "relay" => relay.to_owned(), "partition" => partition.to_string())
        .set(seconds);
}

pub(crate) fn parked(relay: &str) {
    counter!(metric::RELAY_PARKED, "relay" => relay.to_owned()).increment(1);
}

/// Initializes the gauges of failures when a relay starts to run, so that they exist from the
/// start.
pub(crate) fn relay_begins(relay: &str) {
    relay_database_is_away(relay, false);
    relay_broker_is_away(relay, false);
    relay_unavailable_topics(relay, 0);
}

pub(crate) fn relay_database_is_away(relay: &str, is_away: bool) {
    gauge!(metric::RELAY_DATABASE_AWAY, "relay" => relay.to_owned()).set(u8::from(is_away));
}

pub(crate) fn relay_broker_is_away(relay: &str, is_away: bool) {
    gauge!(metric::RELAY_BROKER_AWAY, "relay" => relay.to_owned()).set(u8::from(is_away));
}

pub(crate) fn relay_unavailable_topics(relay: &str, topics: usize) {
    gauge!(metric::RELAY_UNAVAILABLE_TOPICS, "relay" => relay.to_owned()).set(topics as f64);
}
