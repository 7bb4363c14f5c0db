//! Spans with the messaging attributes of OpenTelemetry.
//!
//! Ids are attributes of a span and never labels of a metric, because each value of a label creates
//! a time series.

use tracing::{Span, debug_span, field};

use crate::{Destination, MessageId};

/// Returns the span of a function for one message. `operation` is the name of the function.
pub fn of_message(operation: &'static str, id: &MessageId, destination: &Destination) -> Span {
    debug_span!(
        "idem",
        otel.name = operation,
        messaging.system = "idem",
        messaging.operation.name = operation,
        messaging.operation.type = "process",
        messaging.destination.name = destination.as_str(),
        messaging.message.id = %id,
        idem.outcome = field::Empty,
    )
}

/// Returns the span of a function for many messages.
pub fn of_batch(operation: &'static str, destination: &Destination, count: usize) -> Span {
    debug_span!(
        "idem",
        otel.name = operation,
        messaging.system = "idem",
        messaging.operation.name = operation,
        messaging.operation.type = "process",
        messaging.destination.name = destination.as_str(),
        messaging.batch.message_count = count,
    )
}

/// Returns the span of a message that is sent without an incoming message.
pub fn of_send(topic: &str) -> Span {
    debug_span!(
        "idem",
        otel.name = "send",
        messaging.system = "idem",
        messaging.operation.name = "send",
        messaging.operation.type = "send",
        messaging.destination.name = topic,
        messaging.message.id = field::Empty,
    )
}
