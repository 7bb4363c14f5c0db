//! W3C trace context: passes the trace from the incoming message to the effects that result from
//! it.

use idem_client::Effect;
#[cfg(feature = "opentelemetry")]
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
use tracing::Span;
#[cfg(feature = "opentelemetry")]
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::Message;

/// The header that identifies the trace and the parent span.
pub(super) const PARENT: &str = "traceparent";
/// The header with additional data of tracing systems.
pub(super) const STATE: &str = "tracestate";

/// The content of a valid `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: u128,
    span: u64,
    flags: u8,
}

/// The longest header that the server accepts, in bytes. The standard does not define longer
/// headers.
const LONGEST_PARENT_BYTES: usize = 255;
/// The length of a `tracestate` header, in bytes, up to which the standard requires to pass it on.
const LONGEST_STATE_BYTES: usize = 512;

/// Parses the header as defined in <https://www.w3.org/TR/trace-context/#traceparent-header>. Later
/// versions may have more fields after a dash.
fn parse(header: &str) -> Option<Parent> {
    let mut parts = header.split('-');
    let version = hex(parts.next()?, 2)?;
    let parent = Parent {
        trace: hex(parts.next()?, 32)?,
        span: u64::try_from(hex(parts.next()?, 16)?).ok()?,
        flags: u8::try_from(hex(parts.next()?, 2)?).ok()?,
    };
    let is_whole = version != 0 || parts.next().is_none();
    let is_accepted = version != 0xff && header.len() <= LONGEST_PARENT_BYTES;
    (is_accepted && is_whole && parent.trace != 0 && parent.span != 0).then_some(parent)
}

/// Parses exactly `count` hexadecimal digits in lower case.
fn hex(digits: &str, count: usize) -> Option<u128> {
    let is_hex = digits
        .bytes()
        .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    (digits.len() == count && is_hex)
        .then(|| u128::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Makes a span that has not been entered yet continue the trace of these headers.
#[cfg(feature = "opentelemetry")]
pub(super) fn continues(span: &Span, parent: Option<&str>, state: Option<&str>) {
    let Some(parent) = parent.and_then(parse) else {
        return;
    };
    let context = SpanContext::new(
        TraceId::from(parent.trace),
        SpanId::from(parent.span),
        TraceFlags::new(parent.flags),
        true,
        state
            .and_then(|state| state.parse().ok())
            .unwrap_or_default(),
    );
    // An error means that the span is not collected.
    let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(context));
}

#[cfg(not(feature = "opentelemetry"))]
pub(super) fn continues(_: &Span, _: Option<&str>, _: Option<&str>) {}

/// Adds a trace to the effects that have no trace: the trace of the current span or, if that span
/// is not collected, the trace of the message unchanged.
pub(crate) fn pass_on(message: &Message, effects: &mut [Effect]) {
    if effects
        .iter()
        .all(|effect| effect.headers().contains_key(PARENT))
    {
        return;
    }
    let Some((parent, state)) = current().or_else(|| incoming(message)) else {
        return;
    };
    for effect in effects
        .iter_mut()
        .filter(|effect| !effect.headers().contains_key(PARENT))
    {
        effect.insert_header(PARENT, parent.clone());
        if let Some(state) = &state {
            effect.insert_header(STATE, state.clone());
        }
    }
}

fn incoming(message: &Message) -> Option<(String, Option<String>)> {
    let parent = message
        .header(PARENT)
        .filter(|parent| parse(parent).is_some())?;
    // The standard allows only printable ASCII, and the database may not be able to store anything
    // else.
    let is_text = |state: &&str| {
        state.len() <= LONGEST_STATE_BYTES && state.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    let state = message.header(STATE).filter(is_text);
    Some((parent.to_owned(), state.map(str::to_owned)))
}

#[cfg(feature = "opentelemetry")]
fn current() -> Option<(String, Option<String>)> {
    let context = Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| {
        let parent = format!(
            "00-{}-{}-{:02x}",
            span.trace_id(),
            span.span_id(),
            span.trace_flags()
        );
        let state = span.trace_state().header();
        (parent, (!state.is_empty()).then_some(state))
    })
}

#[cfg(not(feature = "opentelemetry"))]
fn current() -> Option<(String, Option<String>)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// A header is parsed only if it follows the W3C standard.
    #[test]
    fn traceparent_follows_the_standard() {
        let parent = parse(VALID).unwrap();
        assert_eq!(parent.trace, 0x4bf92f3577b34da6a3ce929d0e0e4736);
        assert_eq!(parent.span, 0x00f067aa0ba902b7);
        assert_eq!(parent.flags, 1);
        // A later version may have more fields, but version 00 may not.
        assert!(parse(&format!("01{}-more", &VALID[2..])).is_some());
        for wrong in [
            String::new(),
            format!("{VALID}-more"),
            VALID.to_uppercase(),
            VALID.replace("00-4b", "ff-4b"),
            VALID.replace("00-4b", "0-4b"),
            VALID.replace("f067", "+067"),
            format!("00-{:032}-00f067aa0ba902b7-01", 0),
            format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016}-01", 0),
            VALID[..52].to_owned(),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
    }

    /// Without a collected span, effects get the unchanged trace of the message. This does not
    /// apply to effects that have their own trace, or if the header of the message is invalid.
    #[test]
    fn message_trace_is_passed_on_without_a_span() {
        let effect = || Effect::bytes("t", [], "x");
        let message = Message::new("in", "")
            .with_header(PARENT, VALID)
            .with_header(STATE, "a=1");
        let mut effects = [effect(), effect().header(PARENT, "its own")];
        pass_on(&message, &mut effects);
        assert_eq!(
            effects[0],
            effect().header(PARENT, VALID).header(STATE, "a=1")
        );
        assert_eq!(effects[1], effect().header(PARENT, "its own"));

        let message = Message::new("in", "")
            .with_header(PARENT, "nonsense")
            .with_header(STATE, "a=1");
        let mut effects = [effect()];
        pass_on(&message, &mut effects);
        assert_eq!(effects, [effect()]);
    }
}
