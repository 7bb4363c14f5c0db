//! Spans with OpenTelemetry's messaging attributes.
//!
//! Ids are attributes of a span and never labels of a metric: each value of a label is a time
//! series of its own.

use tracing::{Span, debug_span, field};

use crate::{Destination, MessageId};

/// A call about one message. `operation` is the name of the call.
pub(crate) fn of_message(
    operation: &'static str,
    id: &MessageId,
    destination: &Destination,
) -> Span {
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

/// A call about many messages.
pub(crate) fn of_batch(operation: &'static str, destination: &Destination, count: usize) -> Span {
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

/// A message that is sent without an incoming one.
pub(crate) fn of_send(topic: &str) -> Span {
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
