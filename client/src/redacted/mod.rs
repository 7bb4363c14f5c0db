//! Removes values from the texts of logs and errors, because many people that read logs are not
//! allowed to see payloads and passwords.

mod causes;

use std::{fmt, ops::Deref};

use bytes::Bytes;

pub(crate) use causes::{Described, server_text};
pub use causes::{causes, describe};

/// The bytes of a payload. Its `Debug` shows only their number, because a payload can contain data
/// that must not be logged.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<B: Into<Bytes>> From<B> for Payload {
    fn from(bytes: B) -> Self {
        Self(bytes.into())
    }
}

/// The texts of a serde error before and after the value that it quotes.
const BEFORE_A_VALUE: [&str; 4] = [
    "invalid type: ",
    "invalid value: ",
    "invalid length ",
    "unknown variant `",
];
const AFTER_A_VALUE: [&str; 2] = [", expected ", ", there are no variants"];

/// Returns the text of a serde error without the value that it quotes.
///
/// The value can be part of a payload, or a URL with a password in a settings file.
pub fn without_value(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let text = text.trim_end();
    let kind = BEFORE_A_VALUE
        .into_iter()
        .find(|kind| text.starts_with(kind));
    match (quoted_without_value(text), kind) {
        (Some(text), _) => text,
        (None, Some(kind)) => kind_alone(kind).to_owned(),
        (None, None) => text.to_owned(),
    }
}

/// Like [`without_value`], for a text that can contain a serde error at any position, because
/// errors quote their causes. Returns `None` if the text quotes no serde error.
fn quoted_without_value(text: &str) -> Option<String> {
    let kinds = BEFORE_A_VALUE.into_iter();
    let (start, kind) = kinds
        .filter_map(|kind| Some((text.find(kind)?, kind)))
        .min()?;
    // Use the last match, because the value can contain these words too.
    let end = AFTER_A_VALUE
        .into_iter()
        .filter_map(|after| text.rfind(after))
        .max()?;
    let is_quoted = end >= start + kind.len();
    is_quoted.then(|| format!("{}{}{}", &text[..start], kind_alone(kind), &text[end..]))
}

fn kind_alone(kind: &str) -> &str {
    kind.trim_end_matches([':', ' ', '`'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_value_is_removed_and_position_stays() {
        let error = serde_json::from_str::<u64>("\"a, expected secret\"").unwrap_err();
        assert_eq!(
            without_value(&error),
            "invalid type, expected u64 at line 1 column 20"
        );
        assert_eq!(
            without_value(&"missing field `url`\n"),
            "missing field `url`"
        );
        assert_eq!(without_value(&"invalid value: secret"), "invalid value");
        let none = "unknown variant `secret`, there are no variants";
        assert_eq!(
            without_value(&none),
            "unknown variant, there are no variants"
        );
    }

    #[test]
    fn only_serde_errors_are_shortened_in_a_text() {
        let quoted = "cannot read (invalid length 3, expected a tuple) of m-1";
        let shown = "cannot read (invalid length, expected a tuple) of m-1";
        assert_eq!(quoted_without_value(quoted).as_deref(), Some(shown));
        for other in [
            "invalid value: retries",
            "found 3, expected 4, invalid type: no",
            "",
        ] {
            assert_eq!(quoted_without_value(other), None, "{other}");
        }
    }
}
