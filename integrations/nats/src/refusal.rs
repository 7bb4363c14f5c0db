//! The error text of NATS for a missing permission to publish to a subject.

const REFUSAL: &str = "Permissions Violation for Publish to ";

/// Returns whether this error denies the permission to publish to this subject. The protocol of
/// NATS has no error code for it, only this text.
pub(super) fn is_of(error: &str, subject: &str) -> bool {
    let Some((words, quoted)) = error.split_at_checked(REFUSAL.len()) else {
        return false;
    };
    // The server quotes the subject as a string literal of Go. Rust escapes quotes, backslashes and
    // some white space in the same way. A subject with other control characters or with combining
    // characters is not recognized. Its publish then ends without a confirmation instead.
    words.eq_ignore_ascii_case(REFUSAL) && quoted.starts_with(&format!("{subject:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_matches_exactly_one_subject() {
        let error = "Permissions Violation for Publish to \"Orders.x\"";
        assert!(
            is_of(error, "Orders.x")
                && is_of(&error.replace("Permissions", "permissions"), "Orders.x")
        );
        for other in ["orders.x", "Orders", "Orders.x.y", "Orders.y"] {
            assert!(!is_of(error, other), "{other}");
        }
    }

    #[test]
    fn escaped_subject_is_recognized() {
        for (quoted, subject) in [(r#"a\"b"#, "a\"b"), (r"a\\b", r"a\b"), ("ä", "ä")] {
            let error = format!("Permissions Violation for Publish to \"{quoted}\"");
            assert!(is_of(&error, subject), "{error}");
        }
        assert!(!is_of(r#"Permissions Violation for Publish to "a\"#, "a"));
        // The server does not escape a combining character, and Rust does.
        let combining = "e\u{301}";
        let error = format!("Permissions Violation for Publish to \"{combining}\"");
        assert!(!is_of(&error, combining), "{error}");
    }
}
