//! Reads JSON piece by piece. The results borrow from the text. A value is copied only after its
//! length was compared with a limit.

use crate::error::{Invalid, Rejected, check_len};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

const MEMBERS: &str = "Its members are topic, payload or payload_base64, content_type, key, type, \
                       headers, message_id and deliver_after.";
/// The number of bytes of a name that an error message shows.
const SHOWN_BYTES: usize = 64;
/// The number of bytes of the longest escape sequence for one byte: `\u0000`.
const ESCAPE_BYTES: usize = 6;

/// Calls `each` with the JSON of every element of an array.
pub fn elements<'a>(
    what: &str,
    json: &'a str,
    each: impl FnMut(&'a str) -> Result<(), Rejected>,
) -> Result<(), Rejected> {
    read(what, json, |json, stopped| {
        json.deserialize_seq(Elements(each, stopped))
    })
}

/// Calls `each` with the name and the JSON of every member of an object. The name has no quotes,
/// and its escape sequences are not decoded.
pub fn members<'a>(
    what: &str,
    json: &'a str,
    each: impl FnMut(&'a str, &'a str) -> Result<(), Rejected>,
) -> Result<(), Rejected> {
    // Check this before parsing, because the parser's own error would repeat the value.
    if !json.starts_with('{') {
        return Err(malformed(what, "it is not an object").into());
    }
    read(what, json, |json, stopped| {
        json.deserialize_map(Members(each, stopped))
    })
}

type Json<'a> = serde_json::Deserializer<serde_json::de::StrRead<'a>>;

fn read<'a>(
    what: &str,
    json: &'a str,
    visit: impl FnOnce(&mut Json<'a>, &mut Option<Rejected>) -> serde_json::Result<()>,
) -> Result<(), Rejected> {
    let mut stopped = None;
    let mut json = serde_json::Deserializer::from_str(json);
    let ended = visit(&mut json, &mut stopped).and_then(|()| json.end());
    match (stopped, ended) {
        (Some(rejected), _) => Err(rejected),
        (None, Err(error)) => {
            // Remove " at line 1 column n": the position refers to a text that the caller never
            // saw.
            let message = error.to_string();
            Err(malformed(what, message.split(" at line ").next().unwrap_or(&message)).into())
        }
        (None, Ok(())) => Ok(()),
    }
}

struct Elements<'s, F>(F, &'s mut Option<Rejected>);

impl<'a, F: FnMut(&'a str) -> Result<(), Rejected>> Visitor<'a> for Elements<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut array: A) -> Result<(), A::Error> {
        while let Some(element) = array.next_element::<&RawValue>()? {
            (self.0)(element.get()).map_err(|rejected| stop(self.1, rejected))?;
        }
        Ok(())
    }
}

struct Members<'s, F>(F, &'s mut Option<Rejected>);

impl<'a, F: FnMut(&'a str, &'a str) -> Result<(), Rejected>> Visitor<'a> for Members<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut object: A) -> Result<(), A::Error> {
        while let Some((name, value)) = object.next_entry::<&RawValue, &RawValue>()? {
            let name = name.get();
            let name = name.get(1..name.len() - 1).unwrap_or_default();
            (self.0)(name, value.get()).map_err(|rejected| stop(self.1, rejected))?;
        }
        Ok(())
    }
}

/// Saves the error that ends the reading, because the parser's own error contains only a text.
fn stop<E: Error>(stopped: &mut Option<Rejected>, rejected: Rejected) -> E {
    *stopped = Some(rejected);
    E::custom("stopped")
}

/// Parses a string of 1 to `max` bytes.
pub fn text<'a>(what: &str, json: &'a str, max: usize) -> Result<Cow<'a, str>, Invalid> {
    if let Some(text) = unescaped(json) {
        check_len(what, text, max)?;
        return Ok(Cow::Borrowed(text));
    }
    if !json.starts_with('"') {
        return Err(malformed(what, "it is not a string"));
    }
    if json.len() > 2 + ESCAPE_BYTES * max {
        return Err(Invalid::new(
            format!("{what} is too long"),
            format!("It must have 1 to {max} bytes."),
        ));
    }
    let text: String = serde_json::from_str(json).map_err(|e| malformed(what, &e.to_string()))?;
    check_len(what, &text, max)?;
    Ok(Cow::Owned(text))
}

/// Returns the string if it has no escapes.
pub fn unescaped(json: &str) -> Option<&str> {
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    (!text.contains('\\')).then_some(text)
}

/// Returns the beginning of a name, for an error message.
pub fn shown(name: &str) -> &str {
    let mut end = name.len().min(SHOWN_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

pub fn malformed(what: &str, why: &str) -> Invalid {
    Invalid::new(format!("{what} is malformed: {why}"), MEMBERS)
}
