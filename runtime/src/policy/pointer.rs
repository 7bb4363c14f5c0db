//! Reads one member of a JSON payload as text, exactly as it was written.
//!
//! Numbers are read as text: as floating-point numbers, two different long integers could become
//! equal, and so the same id.

use std::{borrow::Cow, fmt};

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::Error;

/// Checks that a text is a JSON pointer (RFC 6901).
pub(crate) fn check(pointer: &str) -> Result<(), String> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return Err(format!(
            "{pointer:?} is not a JSON pointer: it must be empty or begin with /"
        ));
    }
    let mut rest = pointer.split('~').skip(1);
    match rest.all(|after| after.starts_with(['0', '1'])) {
        true => Ok(()),
        false => Err(format!(
            "{pointer:?} is not a JSON pointer: ~ must be followed by 0 or 1"
        )),
    }
}

/// Returns the string or the integer at this position; `None` if there is no value, or if it is
/// `null`.
pub(crate) fn text_at(payload: &[u8], pointer: &str) -> Result<Option<String>, Error> {
    let mut here: &RawValue =
        serde_json::from_slice(payload).map_err(|error| Error::Decode(error.into()))?;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        match member(here, &step)? {
            Some(next) => here = next,
            None => return Ok(None),
        }
    }
    let written = here.get();
    match written.as_bytes() {
        [b'"', ..] => serde_json::from_str(written)
            .map(Some)
            .map_err(|error| Error::Decode(error.into())),
        b"null" => Ok(None),
        // JSON has one spelling for each integer except zero, which is `0` or `-0`.
        b"-0" => Err(refused(pointer, "-0")),
        [b'-' | b'0'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => {
            Ok(Some(written.to_owned()))
        }
        [b'-' | b'0'..=b'9', ..] => Err(refused(pointer, "a number that is not an integer")),
        [b'{', ..] => Err(refused(pointer, "an object")),
        [b'[', ..] => Err(refused(pointer, "an array")),
        _ => Err(refused(pointer, "a boolean")),
    }
}

fn refused(pointer: &str, what: &str) -> Error {
    Error::Invalid(format!(
        "{pointer} of the payload is {what}: an id must be a string or an integer"
    ))
}

fn member<'p>(value: &'p RawValue, step: &str) -> Result<Option<&'p RawValue>, Error> {
    let mut json = serde_json::Deserializer::from_str(value.get());
    match value.get().as_bytes() {
        [b'{', ..] => json.deserialize_map(Step(step)),
        [b'[', ..] => json.deserialize_seq(Step(step)),
        _ => return Ok(None),
    }
    .map_err(|error| Error::Decode(error.into()))
}

/// A visitor that keeps one member of an object or an array and skips all others.
struct Step<'s>(&'s str);

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Key(name)) = members.next_key()? {
            if name == self.0 {
                // Of several members with the same name the last counts, as everywhere in
                // serde_json.
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        // `parse` accepts "01" and "+1" too, which are not valid as an index in the RFC.
        let index = self
            .0
            .parse::<usize>()
            .ok()
            .filter(|index| index.to_string() == self.0);
        let (mut found, mut n) = (None, 0);
        while let Some(element) = elements.next_element::<&RawValue>()? {
            if Some(n) == index {
                found = Some(element);
            }
            n += 1;
        }
        Ok(found)
    }
}

#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(payload: &str, pointer: &str) -> Option<String> {
        text_at(payload.as_bytes(), pointer).unwrap()
    }

    #[test]
    fn strings_and_integers_are_read_unchanged() {
        assert_eq!(at(r#"{"id": "o-1"}"#, "/id").as_deref(), Some("o-1"));
        assert_eq!(at(r#"{"id": "\u00e9\""}"#, "/id").as_deref(), Some("é\""));
        assert_eq!(at(r#"{"id": -7}"#, "/id").as_deref(), Some("-7"));
        assert_eq!(at(" \"whole\" ", "").as_deref(), Some("whole"));
    }

    #[test]
    fn long_integers_stay_different() {
        let (one, other) = ("900719925474099300000001", "900719925474099300000002");
        assert_eq!(
            at(&format!(r#"{{"id": {one}}}"#), "/id").as_deref(),
            Some(one)
        );
        assert_eq!(
            at(&format!(r#"{{"id": {other}}}"#), "/id").as_deref(),
            Some(other)
        );
    }

    #[test]
    fn names_with_slashes_and_tildes_are_found() {
        let payload = r#"{"a/b": {"~": [10, {"": "x"}]}}"#;
        assert_eq!(at(payload, "/a~1b/~0/0").as_deref(), Some("10"));
        assert_eq!(at(payload, "/a~1b/~0/1/").as_deref(), Some("x"));
    }

    #[test]
    fn missing_value_is_none() {
        for pointer in [
            "/b", "/a/b", "/a/0", "/list/1", "/list/-", "/list/00", "/null", "/null/x",
        ] {
            assert_eq!(
                at(r#"{"a": 1, "list": ["x"], "null": null}"#, pointer),
                None,
                "{pointer}"
            );
        }
    }

    #[test]
    fn value_with_several_spellings_is_rejected() {
        for value in ["1.0", "1e3", "-0", "true", "{}", "[1]"] {
            let payload = format!(r#"{{"id": {value}}}"#);
            let result = text_at(payload.as_bytes(), "/id");
            assert!(
                matches!(result, Err(Error::Invalid(_))),
                "{value}: {result:?}"
            );
        }
        assert!(matches!(text_at(b"no json", "/id"), Err(Error::Decode(_))));
    }

    #[test]
    fn pointer_begins_with_a_slash() {
        assert!(check("").is_ok());
        assert!(check("/a~0/b~1").is_ok());
        for wrong in ["a", "$.a", "/a~", "/a~2"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
