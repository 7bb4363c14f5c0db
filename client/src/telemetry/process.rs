//! One message, from taking it up to knowing what became of it.

use std::time::Instant;

use metrics::{Gauge, counter, gauge, histogram};
use tracing::{Span, field, info_span};

use super::{metric, name_of, trace};
use crate::{Destination, Error, Message, Processed};

/// Measures the processing of one message. Dropped before its [end](Self::end), it was given up.
pub(crate) struct Processing {
    span: Span,
    destination: String,
    started: Instant,
    in_flight: Gauge,
    is_over: bool,
}

impl Processing {
    /// Its span goes on the trace that the message comes with.
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
        trace::continues(
            &span,
            message.header(trace::PARENT),
            message.header(trace::STATE),
        );
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

    /// What happens to the message happens in this span.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Takes down what became of the message, and hands it on.
    pub(crate) fn end(mut self, answer: Result<Processed, Error>) -> Result<Processed, Error> {
        self.is_over = true;
        if let Err(error) = &answer {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", name_of(error.kind()));
        }
        self.count(match &answer {
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
            Err(Error::AmbiguousCommit(_)) => "ambiguous",
            Err(_) => "failed",
        });
        answer
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

/// The processing of a message, or of a batch, is attempted again.
pub(crate) fn retried(destination: &Destination, error: &Error) {
    let kind = name_of(error.kind());
    counter!(metric::RETRIES, "destination" => destination.to_string(), "kind" => kind)
        .increment(1);
}

/// Messages that share a transaction. Each has a span of its own besides, in the trace that it came
/// with.
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
