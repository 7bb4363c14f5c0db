//! Reads and writes the headers of a trace with the propagator of OpenTelemetry.
//!
//! The global propagator is used, so that the application chooses the format, as for its other
//! libraries. If the application has set none, the global propagator reads and writes nothing, and
//! a trace would end at each message. The format of the W3C is then used instead.

use std::collections::BTreeMap;

use opentelemetry::{
    Context,
    baggage::BaggageExt,
    global,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::TraceContextExt,
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{Message, OutgoingMessage, transport::headers};

/// The headers of a message, from which a propagator extracts.
pub(super) struct Carrier<'m, M>(&'m M);

impl Extractor for Carrier<'_, Message> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.header(name)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.headers().keys().map(String::as_str).collect()
    }
}

impl Extractor for Carrier<'_, OutgoingMessage> {
    fn get(&self, name: &str) -> Option<&str> {
        match name {
            headers::TRACEPARENT => self.0.traceparent.as_deref(),
            _ => self.0.headers.get(name)?.as_str(),
        }
    }

    fn keys(&self) -> Vec<&str> {
        let parent = self.0.traceparent.as_ref().map(|_| headers::TRACEPARENT);
        let others = self.0.headers.keys().map(String::as_str);
        parent
            .into_iter()
            .chain(others.filter(|name| *name != headers::TRACEPARENT))
            .collect()
    }
}

/// The headers that a propagator injects. The names keep their case, because brokers distinguish
/// upper and lower case.
struct Injected(BTreeMap<String, String>);

impl Injector for Injected {
    fn set(&mut self, name: &str, value: String) {
        self.0.insert(name.to_owned(), value);
    }
}

/// Calls the function with the global propagator, or with that of the W3C if none was set.
fn with_propagator<T>(mut function: impl FnMut(&dyn TextMapPropagator) -> T) -> T {
    global::get_text_map_propagator(|global| match global.fields().next() {
        Some(_) => function(global),
        None => function(&TraceContextPropagator::new()),
    })
}

/// Makes a span that has not been entered yet continue the trace of this message.
pub(super) fn continues<'m, M>(span: &Span, message: &'m M)
where
    Carrier<'m, M>: Extractor,
{
    let carrier = Carrier(message);
    let context =
        with_propagator(|propagator| propagator.extract_with_context(&Context::new(), &carrier));
    if context.span().span_context().is_valid() || !context.baggage().is_empty() {
        // An error means that the span is not collected.
        let _ = span.set_parent(context);
    }
}

/// Returns the headers with the trace of the current span. Empty if the span is not collected.
pub(super) fn current() -> BTreeMap<String, String> {
    let context = Span::current().context();
    let mut injected = Injected(BTreeMap::new());
    if context.span().span_context().is_valid() {
        with_propagator(|propagator| propagator.inject_context(&context, &mut injected));
    }
    injected.0
}

/// Returns the names of the headers that hold a trace.
pub(super) fn names() -> Vec<String> {
    with_propagator(|propagator| propagator.fields().map(str::to_owned).collect())
}
