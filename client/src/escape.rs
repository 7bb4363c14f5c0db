//! Escapes values for the few statements that are sent as simple queries, reads their replies, and
//! truncates texts to the length that the server stores.

use postgres_protocol::escape::escape_literal;
use tokio_postgres::SimpleQueryMessage;

use crate::Error;

/// Returns a text as a SQL literal, for any value of `standard_conforming_strings`. Fails with
/// [`Error::Invalid`] if the text contains a zero byte.
pub fn literal(text: &str) -> Result<String, Error> {
    if text.contains('\0') {
        // In the protocol a zero byte ends the statement.
        return Err(Error::Invalid(
            "a text with a zero byte cannot be sent to PostgreSQL".into(),
        ));
    }
    Ok(escape_literal(text))
}

/// Returns the first value of the last row in the reply to a simple query. Returns `None` if there
/// is no row, or if the value is NULL.
pub fn last_value(answers: &[SimpleQueryMessage]) -> Option<&str> {
    let last = answers.iter().rev().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    last?.get(0)
}

/// The longest reason or error, in bytes, that the server stores.
const LONGEST_REASON_BYTES: usize = 8192;

/// Truncates a reason or an error to what the server stores.
pub fn truncated_reason(reason: &str) -> String {
    // A PostgreSQL text cannot contain a zero byte.
    let mut reason = reason.replace('\0', "\u{fffd}");
    let mut end = reason.len().min(LONGEST_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_truncated_to_what_the_server_stores() {
        assert_eq!(truncated_reason("no route"), "no route");
        assert_eq!(truncated_reason("a\0b"), "a\u{fffd}b");
        let long = "é".repeat(5000);
        assert_eq!(truncated_reason(&long).len(), LONGEST_REASON_BYTES);
        assert_eq!(
            truncated_reason(&format!("x{long}")).len(),
            LONGEST_REASON_BYTES - 1
        );
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(literal("o'clock").unwrap(), "'o''clock'");
        assert_eq!(
            literal(r"back\slash'").unwrap().trim_start(),
            r"E'back\\slash'''"
        );
        assert!(literal("a\0b").is_err());
    }
}
