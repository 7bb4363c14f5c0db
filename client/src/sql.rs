//! Values inside the text of a statement, for the few that travel as simple queries; and texts that
//! are cut to fit.

use postgres_protocol::escape::escape_literal;

use crate::Error;

/// A text as a literal, whatever `standard_conforming_strings` says.
pub(crate) fn literal(text: &str) -> Result<String, Error> {
    if text.contains('\0') {
        // The protocol ends a statement there.
        return Err(Error::Invalid(
            "PostgreSQL has no texts with a zero byte".into(),
        ));
    }
    Ok(escape_literal(text))
}

/// The longest reason or error that the server keeps, in bytes.
const LONGEST_REASON_BYTES: usize = 8192;

/// As much of a reason or an error as the server takes.
pub(crate) fn kept(reason: &str) -> String {
    // PostgreSQL has no texts with a zero byte.
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
    fn a_reason_is_cut_to_what_the_server_keeps() {
        assert_eq!(kept("no route"), "no route");
        assert_eq!(kept("a\0b"), "a\u{fffd}b");
        let long = "é".repeat(5000);
        assert_eq!(kept(&long).len(), LONGEST_REASON_BYTES);
        assert_eq!(kept(&format!("x{long}")).len(), LONGEST_REASON_BYTES - 1);
    }

    #[test]
    fn what_would_end_a_literal_is_escaped() {
        assert_eq!(literal("o'clock").unwrap(), "'o''clock'");
        assert_eq!(
            literal(r"back\slash'").unwrap().trim_start(),
            r"E'back\\slash'''"
        );
        assert!(literal("a\0b").is_err());
    }
}
