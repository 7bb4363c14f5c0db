//! Values inside the text of a statement, for the few that travel as simple queries.

use postgres_protocol::escape::escape_literal;

use crate::Error;

/// A text as a literal, whatever `standard_conforming_strings` says.
pub(crate) fn literal(text: &str) -> Result<String, Error> {
    if text.contains('\0') {
        // The protocol ends a statement there.
        return Err(Error::Invalid("PostgreSQL has no texts with a zero byte".into()));
    }
    Ok(escape_literal(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_literal_is_escaped() {
        assert_eq!(literal("o'clock").unwrap(), "'o''clock'");
        assert_eq!(literal(r"back\slash'").unwrap().trim_start(), r"E'back\\slash'''");
        assert!(literal("a\0b").is_err());
    }
}
