//! Escapes values for the few statements that are sent as simple queries, reads their replies, and
//! replaces what a text cannot contain.

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

/// Returns an error as PostgreSQL can store it: a text cannot contain a zero byte.
pub fn without_zero_bytes(error: &str) -> String {
    error.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
