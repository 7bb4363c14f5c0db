//! Trace context: passes the trace from the incoming message to the effects that result from it.
//!
//! With the feature `opentelemetry` the headers are read and written by the propagator of
//! OpenTelemetry. Without the feature, or if no span is collected, the headers of the message are
//! copied.

use std::collections::BTreeMap;

use idem_client::Effect;

#[cfg(feature = "opentelemetry")]
pub(super) use super::propagator::continues;
#[cfg(feature = "opentelemetry")]
use super::propagator::{current, names};
use crate::{Message, transport::headers::TRACEPARENT};

/// The longest `traceparent` that the server accepts, in bytes. The standard defines no value that
/// is longer.
const LONGEST_PARENT_BYTES: usize = 255;
/// The longest value of any other header of a trace that is passed on, in bytes. W3C Baggage
/// requires this length; the other standards require less.
const LONGEST_BYTES: usize = 8192;

/// The headers of a trace of the W3C.
#[cfg(any(test, not(feature = "opentelemetry")))]
const W3C: [&str; 2] = [TRACEPARENT, "tracestate"];

#[cfg(not(feature = "opentelemetry"))]
pub(super) fn continues<M>(_: &tracing::Span, _: &M) {}

#[cfg(not(feature = "opentelemetry"))]
fn current() -> BTreeMap<String, String> {
    BTreeMap::new()
}

#[cfg(not(feature = "opentelemetry"))]
fn names() -> Vec<String> {
    W3C.map(str::to_owned).to_vec()
}

/// Adds a trace to the effects that have no `traceparent`: the trace of the current span or, if
/// that span is not collected, the trace of the message unchanged. A header that an effect already
/// has is not replaced.
pub(crate) fn pass_on(message: &Message, effects: &mut [Effect]) {
    let mut untraced = effects
        .iter_mut()
        .filter(|effect| !effect.headers().contains_key(TRACEPARENT))
        .peekable();
    if untraced.peek().is_none() {
        return;
    }
    let mut trace = current();
    if trace.is_empty() {
        trace = incoming(message);
    }
    trace.retain(|name, value| is_standard(name, value));
    for effect in untraced {
        for (name, value) in &trace {
            if !effect.headers().contains_key(name) {
                effect.insert_header(name.clone(), value.clone());
            }
        }
    }
}

/// Returns the headers of the message's trace.
fn incoming(message: &Message) -> BTreeMap<String, String> {
    let headers = names().into_iter().filter_map(|name| {
        let value = message.header(&name)?.to_owned();
        Some((name, value))
    });
    headers.collect()
}

/// Returns whether the standards allow the header: printable ASCII of limited length. Other headers
/// are not passed on, because the server could reject them, and the message would fail at each
/// attempt.
fn is_standard(name: &str, value: &str) -> bool {
    let longest = match name {
        TRACEPARENT => LONGEST_PARENT_BYTES,
        _ => LONGEST_BYTES,
    };
    (1..=longest).contains(&value.len()) && value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn effect() -> Effect {
        Effect::bytes("t", [], "x")
    }

    /// Returns an effect to which the trace of a message with these headers was passed on.
    fn passed_on(parent: &str, state: &str) -> Effect {
        let message = Message::new("in", "")
            .with_header(TRACEPARENT, parent)
            .with_header("tracestate", state);
        let mut effects = [effect()];
        pass_on(&message, &mut effects);
        let [effect] = effects;
        effect
    }

    /// An application that sets no propagator gets the same headers with and without the feature.
    #[test]
    fn headers_of_the_w3c_are_copied_by_default() {
        assert_eq!(names(), W3C);
    }

    /// Without a collected span, effects get the unchanged trace of the message. This does not
    /// apply to effects that have their own trace.
    #[test]
    fn message_trace_is_passed_on_without_a_span() {
        // The format of a later version is passed on too.
        for parent in [PARENT, "01-a format of the future"] {
            assert_eq!(
                passed_on(parent, "a=1"),
                effect()
                    .header(TRACEPARENT, parent)
                    .header("tracestate", "a=1")
            );
        }
        let message = Message::new("in", "").with_header(TRACEPARENT, PARENT);
        let mut effects = [effect().header(TRACEPARENT, "its own")];
        pass_on(&message, &mut effects);
        assert_eq!(effects, [effect().header(TRACEPARENT, "its own")]);

        let mut effects = [effect()];
        pass_on(&Message::new("in", ""), &mut effects);
        assert_eq!(effects, [effect()]);
    }

    /// A header that the server does not accept is left out, so that the message does not fail.
    #[test]
    fn header_outside_the_standards_is_left_out() {
        let traced = effect().header(TRACEPARENT, PARENT);
        for state in ["", "a=\0", "a=ä", &"a".repeat(8193)] {
            assert_eq!(passed_on(PARENT, state), traced, "{state:?}");
        }
        let stated = effect().header("tracestate", "a=1");
        for parent in ["", "00-\0", &"0".repeat(256)] {
            assert_eq!(passed_on(parent, "a=1"), stated, "{parent:?}");
        }
    }
}
