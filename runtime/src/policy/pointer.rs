//! Reads one member of a JSON payload as the text of an id.

use serde_json::Value;

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
    let payload: Value =
        serde_json::from_slice(payload).map_err(|error| Error::Decode(error.into()))?;
    let text = match payload.pointer(pointer) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => Some(text.clone()),
        // A longer integer is a float here. Two different long integers could be the same float.
        Some(other) => {
            let unsigned = other.as_u64().map(|number| number.to_string());
            unsigned.or_else(|| other.as_i64().map(|number| number.to_string()))
        }
    };
    text.map(Some).ok_or_else(|| {
        Error::Invalid(format!(
            "{pointer} of the payload cannot be an id: an id must be a string or an integer of at \
             most 64 bits"
        ))
    })
}

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
        assert_eq!(
            at(r#"{"id": 18446744073709551615}"#, "/id").as_deref(),
            Some("18446744073709551615")
        );
        assert_eq!(at(" \"whole\" ", "").as_deref(), Some("whole"));
    }

    #[test]
    fn missing_value_is_none() {
        for pointer in ["/b", "/a/b", "/list/1", "/list/-", "/null", "/null/x"] {
            assert_eq!(
                at(r#"{"a": 1, "list": ["x"], "null": null}"#, pointer),
                None,
                "{pointer}"
            );
        }
    }

    #[test]
    fn value_with_several_spellings_is_rejected() {
        for value in [
            "1.0",
            "1e3",
            "-0",
            "18446744073709551616",
            "true",
            "{}",
            "[1]",
        ] {
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
