//! The JSON format in which a handler states its effects.

use crate::error::{Invalid, Rejected};
use crate::limits::{
    EFFECTS, EFFECTS_BYTES, HEADERS_BYTES, KEY_BYTES, NAME_BYTES, TRACEPARENT_BYTES,
};
use crate::{json, memory};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::borrow::Cow;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// The payload of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadSpec<'a> {
    /// JSON text.
    Json(&'a str),
    Bytes(Vec<u8>),
}

impl PayloadSpec<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            PayloadSpec::Json(text) => text.as_bytes(),
            PayloadSpec::Bytes(bytes) => bytes,
        }
    }
}

/// A validated effect, as the caller stated it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectSpec<'a> {
    pub topic: Cow<'a, str>,
    pub payload: PayloadSpec<'a>,
    pub content_type: Cow<'a, str>,
    pub key: Option<Cow<'a, str>>,
    pub kind: Option<Cow<'a, str>>,
    /// The text of a JSON object.
    pub headers: Option<&'a str>,
    pub traceparent: Option<String>,
    pub message_id: Option<Uuid>,
    /// The earliest delivery time, in microseconds since 1970.
    pub deliver_after: Option<i64>,
}

pub const JSON: &str = "application/json";
pub const OCTETS: &str = "application/octet-stream";

/// Parses an array of effects, or a single effect given as an object. `json` is the text output of
/// a `jsonb`. A JSON payload is an unchanged part of this text.
///
/// Calls `tick` twice for every effect of an array, and once for a single effect, so that the
/// caller can check for interrupts.
pub fn parse_effects(json: &str, mut tick: impl FnMut()) -> Result<Vec<EffectSpec<'_>>, Rejected> {
    check_size(json)?;
    let mut wires = Vec::new();
    split("effects", json, &mut wires, &mut tick)?;
    let mut effects = memory::reserve(wires.len())?;
    for (n, wire) in wires.into_iter().enumerate() {
        tick();
        effects.push(parse_effect(&format!("effect {}", n + 1), wire)?);
    }
    Ok(effects)
}

/// Parses an array with the effects of `messages` messages: each element is what [`parse_effects`]
/// accepts. The errors and `tick` are the same.
pub fn parse_effects_of_each(
    json: &str,
    messages: usize,
    mut tick: impl FnMut(),
) -> Result<Vec<Vec<EffectSpec<'_>>>, Rejected> {
    check_size(json)?;
    let mut lists = Vec::new();
    if !json.starts_with('[') {
        return Err(wrong_lists("effects is not an array".into(), messages));
    }
    json::elements("effects", json, |list| {
        if lists.len() == messages {
            return Err(wrong_lists(
                "effects has too many elements".into(),
                messages,
            ));
        }
        Ok(memory::push(&mut lists, list)?)
    })?;
    if lists.len() < messages {
        let count = lists.len();
        return Err(wrong_lists(
            format!("effects has {count} elements"),
            messages,
        ));
    }
    let mut wires = Vec::new();
    let mut effects = memory::reserve(messages)?;
    for (n, list) in lists.into_iter().enumerate() {
        let before = wires.len();
        split(
            &format!("element {} of effects", n + 1),
            list,
            &mut wires,
            &mut tick,
        )?;
        let mut parsed = memory::reserve(wires.len() - before)?;
        for (m, wire) in wires[before..].iter().enumerate() {
            tick();
            parsed.push(parse_effect(
                &format!("effect {} of message {}", m + 1, n + 1),
                wire,
            )?);
        }
        effects.push(parsed);
    }
    Ok(effects)
}

fn wrong_lists(message: String, messages: usize) -> Rejected {
    Rejected::Invalid(Invalid::new(
        message,
        format!("Give an array with {messages} elements, one for each id: its effects."),
    ))
}

fn check_size(json: &str) -> Result<(), Rejected> {
    if json.len() > EFFECTS_BYTES {
        return Err(Rejected::Invalid(Invalid::new(
            format!("the effects have {} bytes", json.len()),
            format!(
                "Record at most {EFFECTS_BYTES} bytes at a time, in several function calls if \
                 necessary."
            ),
        )));
    }
    Ok(())
}

/// Adds the JSON of each effect to `wires`.
fn split<'a>(
    what: &str,
    json: &'a str,
    wires: &mut Vec<&'a str>,
    tick: &mut impl FnMut(),
) -> Result<(), Rejected> {
    let mut add = |wire| {
        if wires.len() == EFFECTS {
            return Err(Rejected::Invalid(Invalid::new(
                format!("more than {EFFECTS} effects in one function call"),
                format!(
                    "Record at most {EFFECTS} effects at a time, in several function calls if \
                     necessary."
                ),
            )));
        }
        Ok(memory::push(wires, wire)?)
    };
    match json.as_bytes().first() {
        Some(b'[') => json::elements(what, json, |wire| {
            tick();
            add(wire)
        }),
        Some(b'{') => add(json),
        _ => Err(Rejected::Invalid(Invalid::new(
            format!("{what} is neither an array nor an object"),
            "Give an array of effects, such as [{\"topic\": \"orders\", \"payload\": {}}].",
        ))),
    }
}

/// The members of an effect, each as JSON text.
#[derive(Default)]
struct Wire<'a> {
    topic: Option<&'a str>,
    payload: Option<&'a str>,
    payload_base64: Option<&'a str>,
    content_type: Option<&'a str>,
    key: Option<&'a str>,
    kind: Option<&'a str>,
    headers: Option<&'a str>,
    message_id: Option<&'a str>,
    deliver_after: Option<&'a str>,
}

impl<'a> Wire<'a> {
    fn read(what: &str, json: &'a str) -> Result<Self, Rejected> {
        let mut wire = Wire::default();
        json::members(what, json, |name, value| {
            let member = match name {
                "topic" => &mut wire.topic,
                "payload" => &mut wire.payload,
                "payload_base64" => &mut wire.payload_base64,
                "content_type" => &mut wire.content_type,
                "key" => &mut wire.key,
                "type" => &mut wire.kind,
                "headers" => &mut wire.headers,
                "message_id" => &mut wire.message_id,
                "deliver_after" => &mut wire.deliver_after,
                _ => {
                    return Err(json::malformed(
                        what,
                        &format!("unknown field `{}`", json::shown(name)),
                    )
                    .into());
                }
            };
            // A payload may be null. Any other member that is null counts as missing.
            *member = (value != "null" || name == "payload").then_some(value);
            Ok(())
        })?;
        Ok(wire)
    }
}

fn parse_effect<'a>(what: &str, json: &'a str) -> Result<EffectSpec<'a>, Rejected> {
    let wire = Wire::read(what, json)?;
    let text = |name: &str, json: Option<&'a str>, max| {
        json.map(|json| json::text(&format!("the {name} of {what}"), json, max))
    };
    let Some(topic) = text("topic", wire.topic, NAME_BYTES).transpose()? else {
        return Err(json::malformed(what, "missing field `topic`").into());
    };
    let (payload, usual_type) = match (wire.payload, wire.payload_base64) {
        (Some(json), None) => (PayloadSpec::Json(json), JSON),
        (None, Some(base64)) => (PayloadSpec::Bytes(decode(what, base64)?), OCTETS),
        (None, None) => {
            return Err(Rejected::Invalid(Invalid::new(
                format!("{what} has no payload"),
                "Give payload (any JSON) or payload_base64.",
            )));
        }
        (Some(_), Some(_)) => {
            return Err(Rejected::Invalid(Invalid::new(
                format!("{what} has two payloads"),
                "Give payload or payload_base64, not both.",
            )));
        }
    };
    let content_type = text("content_type", wire.content_type, NAME_BYTES).transpose()?;
    let message_id = text("message_id", wire.message_id, NAME_BYTES).transpose()?;
    let deliver_after = text("deliver_after", wire.deliver_after, NAME_BYTES).transpose()?;
    Ok(EffectSpec {
        topic,
        payload,
        content_type: content_type.unwrap_or(Cow::Borrowed(usual_type)),
        key: text("key", wire.key, KEY_BYTES).transpose()?,
        kind: text("type", wire.kind, NAME_BYTES).transpose()?,
        traceparent: traceparent(what, wire.headers)?,
        headers: wire.headers,
        message_id: message_id.map(|text| uuid(what, &text)).transpose()?,
        deliver_after: deliver_after.map(|text| moment(what, &text)).transpose()?,
    })
}

/// Checks that the headers are a JSON object and returns the member `traceparent`, which is the
/// trace context of the effect.
pub fn traceparent(what: &str, headers: Option<&str>) -> Result<Option<String>, Invalid> {
    let Some(headers) = headers else {
        return Ok(None);
    };
    let wrong = || {
        Invalid::new(
            format!("the headers of {what} are not usable"),
            "Give a JSON object; a traceparent in it is a string.",
        )
    };
    if !headers.starts_with('{') {
        return Err(wrong());
    }
    if headers.len() > HEADERS_BYTES {
        return Err(Invalid::new(
            format!("the headers of {what} have {} bytes", headers.len()),
            format!(
                "Headers must have at most {HEADERS_BYTES} bytes. Move large values into the \
                 payload."
            ),
        ));
    }
    let mut trace = None;
    let read = json::members(what, headers, |name, value| {
        if name == "traceparent" {
            trace = (value != "null").then_some(value);
        }
        Ok(())
    });
    read.map_err(|_| wrong())?;
    let Some(trace) = trace else { return Ok(None) };
    if !trace.starts_with('"') {
        return Err(wrong());
    }
    let too_long = |_| {
        Invalid::new(
            format!("the traceparent of {what} is too long"),
            format!("It must have at most {TRACEPARENT_BYTES} bytes."),
        )
    };
    if trace == "\"\"" {
        return Ok(Some(String::new()));
    }
    let trace = json::text("the traceparent", trace, TRACEPARENT_BYTES).map_err(too_long)?;
    Ok(Some(trace.into_owned()))
}

fn uuid(what: &str, text: &str) -> Result<Uuid, Invalid> {
    Uuid::try_parse(text).map_err(|e| json::malformed(what, &format!("message_id: {e}")))
}

fn moment(what: &str, text: &str) -> Result<i64, Invalid> {
    match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(moment) => Ok((moment.unix_timestamp_nanos() / 1_000) as i64),
        // The parser's own error names a part of its grammar, which does not help the caller.
        Err(_) => Err(Invalid::new(
            format!("the deliver_after of {what} is not a time in RFC 3339 format"),
            "Write it as in RFC 3339, with a time zone: 2030-01-31T12:00:00Z.",
        )),
    }
}

fn decode(what: &str, json: &str) -> Result<Vec<u8>, Rejected> {
    let wrong = || {
        Invalid::new(
            format!("the payload_base64 of {what} is not base64"),
            "Use the standard alphabet with padding (RFC 4648, section 4).",
        )
    };
    // The output of `jsonb` escapes no character of the base64 alphabet, so a text with an escape
    // is not base64.
    let base64 = json::unescaped(json).ok_or_else(wrong)?;
    let most = base64::decoded_len_estimate(base64.len());
    let mut bytes = memory::reserve(most)?;
    bytes.resize(most, 0);
    let decoded = BASE64_STANDARD
        .decode_slice(base64, &mut bytes)
        .map_err(|_| wrong())?;
    bytes.truncate(decoded);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(json: &str) -> Result<Vec<EffectSpec<'_>>, Rejected> {
        parse_effects(json, || ())
    }

    fn rejection(json: &str) -> String {
        match parse(json).unwrap_err() {
            Rejected::Invalid(invalid) => {
                assert!(!invalid.hint.is_empty(), "{invalid}");
                invalid.message
            }
            Rejected::OutOfMemory(error) => panic!("{error}"),
        }
    }

    #[test]
    fn too_many_effects_or_bytes_are_rejected() {
        let effect = r#"{"topic": "t", "payload": 1}"#;
        let list = |effects: usize| format!("[{}]", vec![effect; effects].join(","));
        assert_eq!(parse(&list(EFFECTS)).unwrap().len(), EFFECTS);
        assert!(rejection(&list(EFFECTS + 1)).contains("more than 10000 effects"));
        let long = format!(
            r#"{{"topic": "t", "payload": "{}"}}"#,
            "x".repeat(EFFECTS_BYTES)
        );
        assert!(rejection(&long).contains("bytes"));
    }

    #[test]
    fn effects_of_several_messages_are_parsed() {
        let effect = r#"{"topic": "t", "payload": 1}"#;
        let each = |json: &str, messages| {
            parse_effects_of_each(json, messages, || ())
                .map(|lists| lists.iter().map(Vec::len).collect::<Vec<_>>())
                .map_err(|error| match error {
                    Rejected::Invalid(invalid) => invalid.to_string(),
                    Rejected::OutOfMemory(error) => panic!("{error}"),
                })
        };
        assert_eq!(each("[]", 0), Ok(vec![]));
        let three = format!("[[{effect}, {effect}], [], {effect}]");
        assert_eq!(each(&three, 3), Ok(vec![2, 0, 1]));
        for (json, messages, message) in [
            (effect, 1, "effects is not an array"),
            (&three, 4, "effects has 3 elements"),
            (&three, 2, "effects has too many elements"),
            ("[[], 3]", 2, "element 2 of effects is neither"),
            (
                r#"[[], [{"topic": "t"}]]"#,
                2,
                "effect 1 of message 2 has no payload",
            ),
        ] {
            let error = each(json, messages).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        let half = format!("[{}]", vec![effect; EFFECTS / 2].join(","));
        assert_eq!(
            each(&format!("[{half}, {half}]"), 2),
            Ok(vec![EFFECTS / 2; 2])
        );
        let error = each(&format!("[{half}, {half}, {effect}]"), 3).unwrap_err();
        assert!(error.contains("more than 10000 effects"), "{error}");
    }

    #[test]
    fn error_does_not_repeat_long_values() {
        let long = r#"\""#.repeat(100_000);
        for json in [
            format!(r#"[{{"{long}": 1}}]"#),
            format!(r#"["{long}"]"#),
            format!(r#"[{{"topic": "{long}", "payload": 1}}]"#),
            format!(r#"[{{"topic": "t", "payload_base64": "{long}"}}]"#),
            format!(r#"[{{"topic": "t", "payload": 1, "message_id": "{long}"}}]"#),
            format!(r#"[{{"topic": "t", "payload": 1, "headers": {{"traceparent": "{long}"}}}}]"#),
        ] {
            let message = rejection(&json);
            assert!(message.len() < 200, "{message}");
        }
    }

    #[test]
    fn escapes_in_text_are_decoded() {
        let effects = parse(r#"{"topic": "a\"b\\c", "payload": 1, "key": "\u00e9"}"#).unwrap();
        assert_eq!(effects[0].topic, r#"a"b\c"#);
        assert_eq!(effects[0].key.as_deref(), Some("\u{e9}"));
    }

    /// `tick` is called twice for each effect of an array, so that the caller can stop the parsing.
    #[test]
    fn every_effect_ticks() {
        let mut ticks = 0;
        let json = format!(
            "[{}]",
            vec![r#"{"topic": "t", "payload": 1}"#; 50].join(",")
        );
        parse_effects(&json, || ticks += 1).unwrap();
        assert_eq!(ticks, 100);
    }

    #[test]
    fn effect_with_fewest_and_with_all_members_is_parsed() {
        let least = parse(r#"[{"topic": "t", "payload": null}]"#).unwrap();
        assert_eq!(least[0].payload, PayloadSpec::Json("null"));
        assert_eq!(least[0].content_type, JSON);

        let most = parse(
            r#"{"topic": "t", "payload_base64": "AAE=", "content_type": "image/png", "key": "k",
                "type": "T", "headers": {"traceparent": "00-ab", "n": 1},
                "message_id": "0192f3a4-0000-7abc-8def-0123456789ab",
                "deliver_after": "2030-01-01T00:00:00Z"}"#,
        )
        .unwrap();
        assert_eq!(most[0].payload.bytes(), [0, 1]);
        assert_eq!(most[0].content_type, "image/png");
        assert_eq!(most[0].traceparent.as_deref(), Some("00-ab"));
        assert_eq!(most[0].deliver_after, Some(1_893_456_000_000_000));
        assert_eq!(most[0].kind.as_deref(), Some("T"));
    }

    #[test]
    fn error_names_the_invalid_member() {
        assert!(rejection("3").contains("neither"));
        assert!(rejection(r#"[{"payload": 1}]"#).contains("missing field `topic`"));
        assert!(rejection(r#"[{"topic": "t"}]"#).contains("effect 1 has no payload"));
        assert!(
            rejection(r#"[{"topic": "t", "payload": 1}, {"topic": "", "payload": 1}]"#)
                .contains("the topic of effect 2 is empty")
        );
        assert!(
            rejection(r#"[{"topic": "t", "payload": 1, "payload_base64": ""}]"#)
                .contains("two payloads")
        );
        assert!(rejection(r#"[{"topic": "t", "payload_base64": "?"}]"#).contains("not base64"));
        assert!(
            rejection(r#"[{"topic": "t", "payload": 1, "tpoic": 1}]"#)
                .contains("unknown field `tpoic`")
        );
        assert!(rejection(r#"[{"topic": "t", "payload": 1, "headers": [1]}]"#).contains("headers"));
        assert!(
            rejection(r#"[{"topic": "t", "payload": 1, "message_id": "x"}]"#)
                .contains("effect 1 is malformed")
        );
        assert!(
            rejection(r#"[{"topic": "t", "payload": 1, "deliver_after": "tomorrow"}]"#)
                .contains("deliver_after of effect 1")
        );
        assert!(rejection(r#"[1]"#).contains("effect 1 is malformed"));
    }

    #[test]
    fn deeply_nested_payload_keeps_its_bytes() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let json = format!(r#"[{{"topic": "t", "payload": {deep}}}]"#);
        assert_eq!(parse(&json).unwrap()[0].payload.bytes(), deep.as_bytes());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(json in ".{0,200}") {
            let parsed = parse(&json);
            let is_expected = match &parsed {
                Ok(_) => json.trim_start().starts_with(['[', '{']),
                Err(Rejected::Invalid(invalid)) => !invalid.hint.is_empty(),
                Err(Rejected::OutOfMemory(_)) => false,
            };
            prop_assert!(is_expected, "{parsed:?}");
        }

        #[test]
        fn payload_bytes_are_kept(
            n in any::<f64>().prop_filter("finite", |n| n.is_finite()),
            s in "[a-z]{0,20}",
        ) {
            let payload = format!(r#"{{"n": {n:e}, "s": "{s}"}}"#);
            let json = format!(r#"[{{"topic": "t", "payload": {payload}}}]"#);
            let effects = parse(&json).unwrap();
            prop_assert_eq!(effects[0].payload.bytes(), payload.as_bytes());
        }
    }
}
