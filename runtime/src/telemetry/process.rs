//! The span and the metrics of one message, from the start of its processing to its result.

use std::time::Instant;

use idem_client::Destination;
use metrics::{Gauge, counter, gauge, histogram};
use tracing::{Span, field, info_span};

use super::{metric, trace};
use crate::{Error, Message, Processed};

/// Measures the processing of one message. If it is dropped before its [end](Self::end), the
/// processing was cancelled.
pub(crate) struct Processing {
    span: Span,
    destination: String,
    started: Instant,
    in_flight: Gauge,
    is_over: bool,
}

impl Processing {
    /// Starts the span, which continues the trace of the message.
    pub(crate) fn begin(message: &Message) -> Self {
        let destination = message
            .destination()
            .map(|name| name.to_string())
            .unwrap_or_default();
        let span = info_span!(
            "idem.process",
            otel.name = format!("process {destination}"),
            otel.kind = "consumer",
            otel.status_code = field::Empty,
            messaging.system = "idem",
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = destination,
            messaging.message.id = message.message_id(),
            messaging.message.conversation_id = message.correlation_id(),
            messaging.message.body.size = message.payload().len(),
            idem.outcome = field::Empty,
            error.type = field::Empty,
        );
        trace::continues(&span, message);
        let in_flight = gauge!(metric::IN_FLIGHT, "destination" => destination.clone());
        in_flight.increment(1.0);
        Self {
            span,
            destination,
            started: Instant::now(),
            in_flight,
            is_over: false,
        }
    }

    /// Returns the span in which the message is processed.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Records the result of the message and returns it.
    pub(crate) fn end(mut self, result: Result<Processed, Error>) -> Result<Processed, Error> {
        self.is_over = true;
        if let Err(error) = &result {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", error.kind().as_str());
        }
        self.count(match &result {
            Ok(Processed::New { .. }) => "new",
            Ok(Processed::Unprotected { .. }) => "unprotected",
            Ok(Processed::Duplicate { .. }) => "duplicate",
            Ok(Processed::InProgress) => "in_progress",
            Ok(Processed::Leased { .. }) => "leased",
            Ok(Processed::Buried { .. }) => "buried",
            Ok(Processed::Dead) => "dead",
            Ok(Processed::Mismatch) => "mismatch",
            Ok(Processed::Expired) => "expired",
            Ok(Processed::Stopped { .. }) => "stopped",
            Err(Error::Client(idem_client::Error::AmbiguousCommit(_))) => "ambiguous",
            Err(_) => "failed",
        });
        result
    }

    fn count(&self, outcome: &'static str) {
        self.span.record("idem.outcome", outcome);
        let destination = || self.destination.clone();
        counter!(metric::PROCESSED, "destination" => destination(), "outcome" => outcome)
            .increment(1);
        histogram!(metric::PROCESS_DURATION, "destination" => destination())
            .record(self.started.elapsed());
    }
}

impl Drop for Processing {
    fn drop(&mut self) {
        if !self.is_over {
            self.count("cancelled");
        }
        self.in_flight.decrement(1.0);
    }
}

/// Counts a retry of a message or a batch.
pub(crate) fn retried(destination: &Destination, error: &Error) {
    let kind = error.kind().as_str();
    counter!(metric::RETRIES, "destination" => destination.to_string(), "kind" => kind)
        .increment(1);
}

/// Returns the span of several messages that share a transaction. Each message also has its own
/// span, in its own trace.
pub(crate) fn of_process_batch(destination: &Destination, count: usize) -> Span {
    info_span!(
        "idem.process_batch",
        otel.name = format!("process_batch {destination}"),
        messaging.system = "idem",
        messaging.operation.name = "process_batch",
        messaging.operation.type = "process",
        messaging.destination.name = destination.as_str(),
        messaging.batch.message_count = count,
    )
}
