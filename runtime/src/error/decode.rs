//! The error of a payload that cannot be decoded.

use std::fmt;

use idem_client::redacted::without_value;

/// The reason why a payload cannot be decoded.
///
/// Its text and its causes contain no part of the payload.
#[derive(Debug)]
pub struct DecodeError(serde_json::Error);

impl From<serde_json::Error> for DecodeError {
    fn from(error: serde_json::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_value(&self.0))
    }
}

impl std::error::Error for DecodeError {}
