//! What logs and errors show instead of a value: more people read them than may see payloads and
//! passwords.

use std::fmt;

/// The length of a payload.
pub(crate) struct Length(pub(crate) usize);

impl fmt::Debug for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

/// The text of an error of serde without the value that it met: that may be part of a payload, or a
/// URL with a password in a file of settings.
pub fn without_value(error: &dyn std::fmt::Display) -> String {
    const WITH_A_VALUE: [&str; 4] = ["invalid type", "invalid value", "invalid length", "unknown variant"];
    let text = error.to_string();
    let text = text.trim_end();
    // The last `expected`: the value can contain these words too.
    let kind = WITH_A_VALUE.into_iter().find(|kind| text.starts_with(kind));
    match (kind, text.rfind(", expected ")) {
        (Some(kind), Some(at)) => format!("{kind}{}", &text[at..]),
        (Some(kind), None) => kind.to_owned(),
        (None, _) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_value_is_left_out_and_the_place_is_not() {
        let error = serde_json::from_str::<u64>("\"a, expected secret\"").unwrap_err();
        assert_eq!(without_value(&error), "invalid type, expected u64 at line 1 column 20");
        assert_eq!(without_value(&"missing field `url`\n"), "missing field `url`");
    }
}
