//! The JSON in which a handler states its effects.

use crate::error::{Invalid, check_len};
use crate::limits::{EFFECTS, KEY_BYTES, NAME_BYTES, TRACEPARENT_BYTES};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// What an effect carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadSpec<'a> {
    /// JSON, as its text.
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

/// One effect as it was asked for, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectSpec<'a> {
    pub topic: Cow<'a, str>,
    pub payload: PayloadSpec<'a>,
    pub content_type: Cow<'a, str>,
    pub key: Option<Cow<'a, str>>,
    pub kind: Option<Cow<'a, str>>,
    /// A JSON object, as its text.
    pub headers: Option<&'a str>,
    pub traceparent: Option<String>,
    pub message_id: Option<Uuid>,
    /// Microseconds since 1970.
    pub deliver_after: Option<i64>,
}

pub const JSON: &str = "application/json";
pub const OCTETS: &str = "application/octet-stream";

const MEMBERS: &str =
    "Its members are topic, payload or payload_base64, content_type, key, type, headers, message_id and deliver_after.";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    #[serde(borrow)]
    topic: Cow<'a, str>,
    // A payload of null is a payload: RawValue keeps it apart from a missing one.
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_base64: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    message_id: Option<Uuid>,
    #[serde(borrow)]
    deliver_after: Option<Cow<'a, str>>,
}

fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

/// Reads an array of effects, or a single one as an object. Payloads keep the bytes that they have in `json`.
pub fn parse_effects(json: &str) -> Result<Vec<EffectSpec<'_>>, Invalid> {
    let wires: Vec<&RawValue> = match json.as_bytes().first() {
        Some(b'[') => serde_json::from_str(json).map_err(|e| malformed("effects", &e))?,
        Some(b'{') => vec![serde_json::from_str(json).map_err(|e| malformed("effects", &e))?],
        _ => {
            return Err(Invalid::new(
                "effects is neither an array nor an object",
                "Give an array of effects, such as [{\"topic\": \"orders\", \"payload\": {}}].",
            ));
        }
    };
    if wires.len() > EFFECTS {
        return Err(Invalid::new(
            format!("{} effects in one call", wires.len()),
            format!("Record at most {EFFECTS} in one call; several calls add up."),
        ));
    }
    wires
        .iter()
        .enumerate()
        .map(|(n, wire)| parse_effect(&format!("effect {}", n + 1), wire.get()))
        .collect()
}

fn parse_effect<'a>(what: &str, json: &'a str) -> Result<EffectSpec<'a>, Invalid> {
    let wire: Wire<'a> = serde_json::from_str(json).map_err(|e| malformed(what, &e))?;
    check_len(&format!("the topic of {what}"), &wire.topic, NAME_BYTES)?;
    if let Some(key) = &wire.key {
        check_len(&format!("the key of {what}"), key, KEY_BYTES)?;
    }
    if let Some(kind) = &wire.kind {
        check_len(&format!("the type of {what}"), kind, NAME_BYTES)?;
    }
    if let Some(content_type) = &wire.content_type {
        check_len(&format!("the content_type of {what}"), content_type, NAME_BYTES)?;
    }
    let (payload, usual_type) = match (wire.payload, wire.payload_base64) {
        (Some(json), None) => (PayloadSpec::Json(json.get()), JSON),
        (None, Some(base64)) => (PayloadSpec::Bytes(decode(what, &base64)?), OCTETS),
        (None, None) => {
            return Err(Invalid::new(
                format!("{what} has no payload"),
                "Give payload (any JSON) or payload_base64.",
            ));
        }
        (Some(_), Some(_)) => {
            return Err(Invalid::new(
                format!("{what} has two payloads"),
                "Give payload or payload_base64, not both.",
            ));
        }
    };
    let headers = wire.headers.map(|h| h.get());
    Ok(EffectSpec {
        topic: wire.topic,
        payload,
        content_type: wire.content_type.unwrap_or(Cow::Borrowed(usual_type)),
        key: wire.key,
        kind: wire.kind,
        traceparent: traceparent(what, headers)?,
        headers,
        message_id: wire.message_id,
        deliver_after: wire.deliver_after.map(|text| moment(what, &text)).transpose()?,
    })
}

/// Headers must be an object. A traceparent among them is the trace context of the effect.
pub fn traceparent(what: &str, headers: Option<&str>) -> Result<Option<String>, Invalid> {
    #[derive(Deserialize)]
    struct Trace {
        traceparent: Option<String>,
    }
    let Some(headers) = headers else { return Ok(None) };
    let wrong = || {
        Invalid::new(
            format!("the headers of {what} are not usable"),
            "Give a JSON object; a traceparent in it is a string.",
        )
    };
    if !headers.starts_with('{') {
        return Err(wrong());
    }
    let trace: Trace = serde_json::from_str(headers).map_err(|_| wrong())?;
    if trace.traceparent.as_ref().is_some_and(|t| t.len() > TRACEPARENT_BYTES) {
        return Err(Invalid::new(
            format!("the traceparent of {what} is too long"),
            format!("It must have at most {TRACEPARENT_BYTES} bytes."),
        ));
    }
    Ok(trace.traceparent)
}

fn moment(what: &str, text: &str) -> Result<i64, Invalid> {
    match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(moment) => Ok((moment.unix_timestamp_nanos() / 1_000) as i64),
        Err(e) => Err(Invalid::new(
            format!("the deliver_after of {what} is not a moment: {e}"),
            "Write it as in RFC 3339, with a time zone: 2030-01-31T12:00:00Z.",
        )),
    }
}

fn decode(what: &str, base64: &str) -> Result<Vec<u8>, Invalid> {
    BASE64_STANDARD.decode(base64).map_err(|e| {
        Invalid::new(
            format!("the payload_base64 of {what} is not base64: {e}"),
            "Use the standard alphabet with padding (RFC 4648, section 4).",
        )
    })
}

fn malformed(what: &str, error: &serde_json::Error) -> Invalid {
    // "at line 1 column n" counts in a text that the caller never saw.
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
    Invalid::new(format!("{what} is malformed: {message}"), MEMBERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(json: &str) -> String {
        let invalid = parse_effects(json).unwrap_err();
        assert!(!invalid.hint.is_empty(), "{invalid}");
        invalid.message
    }

    #[test]
    fn the_least_and_the_most_that_an_effect_can_have() {
        let least = parse_effects(r#"[{"topic": "t", "payload": null}]"#).unwrap();
        assert_eq!(least[0].payload, PayloadSpec::Json("null"));
        assert_eq!(least[0].content_type, JSON);

        let most = parse_effects(
            r#"{"topic": "t", "payload_base64": "AAE=", "content_type": "image/png", "key": "k", "type": "T",
                "headers": {"traceparent": "00-ab", "n": 1}, "message_id": "0192f3a4-0000-7abc-8def-0123456789ab",
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
    fn what_is_wrong_is_named() {
        assert!(refused("3").contains("neither"));
        assert!(refused(r#"[{"payload": 1}]"#).contains("missing field `topic`"));
        assert!(refused(r#"[{"topic": "t"}]"#).contains("effect 1 has no payload"));
        assert!(
            refused(r#"[{"topic": "t", "payload": 1}, {"topic": "", "payload": 1}]"#).contains("the topic of effect 2 is empty")
        );
        assert!(refused(r#"[{"topic": "t", "payload": 1, "payload_base64": ""}]"#).contains("two payloads"));
        assert!(refused(r#"[{"topic": "t", "payload_base64": "?"}]"#).contains("not base64"));
        assert!(refused(r#"[{"topic": "t", "payload": 1, "tpoic": 1}]"#).contains("unknown field `tpoic`"));
        assert!(refused(r#"[{"topic": "t", "payload": 1, "headers": [1]}]"#).contains("headers"));
        assert!(refused(r#"[{"topic": "t", "payload": 1, "message_id": "x"}]"#).contains("effect 1 is malformed"));
        assert!(refused(r#"[{"topic": "t", "payload": 1, "deliver_after": "tomorrow"}]"#).contains("deliver_after of effect 1"));
        assert!(refused(r#"[1]"#).contains("effect 1 is malformed"));
    }

    #[test]
    fn a_deep_payload_is_only_bytes() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let json = format!(r#"[{{"topic": "t", "payload": {deep}}}]"#);
        assert_eq!(parse_effects(&json).unwrap()[0].payload.bytes(), deep.as_bytes());
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_panics(json in ".{0,200}") {
            let _ = parse_effects(&json);
        }

        #[test]
        fn payload_bytes_are_kept(n in any::<f64>().prop_filter("finite", |n| n.is_finite()), s in "[a-z]{0,20}") {
            let payload = format!(r#"{{"n": {n:e}, "s": "{s}"}}"#);
            let json = format!(r#"[{{"topic": "t", "payload": {payload}}}]"#);
            let effects = parse_effects(&json).unwrap();
            prop_assert_eq!(effects[0].payload.bytes(), payload.as_bytes());
        }
    }
}
