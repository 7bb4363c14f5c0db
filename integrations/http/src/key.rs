//! The header `Idempotency-Key` as in draft-ietf-httpapi-idempotency-key-header: a string of a
//! structured field (RFC 9651, which replaces RFC 8941).

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{Parser, StringRef};

use crate::problem::Problem;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest key that is accepted, in bytes: the name of the caller and the key together must fit
/// into an id.
const LONGEST_BYTES: usize = 255;

/// Returns the key of a request, or `None` if it has none.
pub(crate) fn of(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Problem::BadKey("it occurs more than once".into()));
    }
    parse(value).map(Some).map_err(Problem::BadKey)
}

fn parse(value: &HeaderValue) -> Result<String, Cow<'static, str>> {
    let text = value
        .to_str()
        .map_err(|_| "it contains characters that are not ASCII")?;
    let text = text.trim_matches([' ', '\t']);
    let key = match text.starts_with('"') {
        true => quoted(text)?,
        false => bare(text)?,
    };
    match key.len() {
        0 => Err("it is empty".into()),
        1..=LONGEST_BYTES => Ok(key),
        _ => Err("it has more than 255 characters".into()),
    }
}

/// Parses a key in quotes. Parameters after the closing quote are ignored, because the draft
/// defines none.
fn quoted(text: &str) -> Result<String, String> {
    let key: Result<Cow<'_, StringRef>, _> = Parser::new(text).parse_item();
    match key {
        Ok(key) => Ok(key.as_str().into()),
        Err(error) => Err(format!(
            "{error}; a key in quotes must be one string of printable ASCII characters, with a \
             backslash before each quote and each backslash in it (RFC 9651)"
        )),
    }
}

/// Parses a key without quotes, which many clients send.
fn bare(text: &str) -> Result<String, &'static str> {
    let is_plain =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';');
    match text.bytes().all(is_plain) {
        true => Ok(text.into()),
        false => Err(
            "a key without quotes must not contain spaces, quotes, backslashes, \
             commas or semicolons",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Keys {
        valid: Vec<Valid>,
        invalid: Vec<String>,
        reasons: Vec<Reason>,
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Valid {
        value: String,
        key: String,
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Reason {
        value: String,
        index: usize,
    }

    /// Each character of a value is one byte. A value that no header can have is an error too.
    fn key(value: &str) -> Result<String, String> {
        let bytes: Vec<u8> = value.chars().map(|c| u8::try_from(c).unwrap()).collect();
        let value = HeaderValue::from_bytes(&bytes).map_err(|error| error.to_string())?;
        parse(&value).map_err(Cow::into_owned)
    }

    #[test]
    fn keys_are_those_of_the_specification() {
        let keys: Keys = cases::read("keys.json");
        for case in keys.valid {
            assert_eq!(key(&case.value), Ok(case.key));
        }
        for bad in keys.invalid {
            assert!(key(&bad).is_err(), "{bad:?} is accepted");
        }
        for Reason { value, index } in keys.reasons {
            let reason = key(&value).unwrap_err();
            let place = format!(" at index {index}; a key in quotes must be one string");
            assert!(reason.contains(&place), "{value:?}: {reason}");
        }
    }

    /// A request without the header has no key, and a request with two such headers is rejected.
    #[test]
    fn repeated_header_is_rejected() {
        let mut headers = HeaderMap::new();
        assert_eq!(of(&headers).unwrap(), None);
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        assert_eq!(of(&headers).unwrap().as_deref(), Some("a"));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        assert!(of(&headers).is_err());
    }
}
