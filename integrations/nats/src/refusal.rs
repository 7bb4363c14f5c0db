//! The error text of NATS for a missing permission to publish to a subject.

const REFUSAL: &str = "Permissions Violation for Publish to \"";

/// Returns whether this error denies the permission to publish to this subject. The protocol of
/// NATS has no error code for it, only this text.
pub(super) fn is_of(error: &str, subject: &str) -> bool {
    let Some((words, quoted)) = error.split_at_checked(REFUSAL.len()) else {
        return false;
    };
    words.eq_ignore_ascii_case(REFUSAL) && unquoted(quoted).as_deref() == Some(subject)
}

/// Returns the text up to the closing quote. The server writes it as a string literal of Go.
fn unquoted(text: &str) -> Option<String> {
    let mut rest = text.chars();
    let mut unquoted = String::new();
    loop {
        unquoted.push(match rest.next()? {
            '"' => return Some(unquoted),
            '\\' => match rest.next()? {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                'x' => code_point(&mut rest, 2)?,
                'u' => code_point(&mut rest, 4)?,
                'U' => code_point(&mut rest, 8)?,
                itself => itself,
            },
            plain => plain,
        });
    }
}

/// Returns the character of an escape sequence with this number of hexadecimal digits.
fn code_point(rest: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let digits: String = rest.take(digits).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
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
        for (quoted, subject) in [
            (r#"a\"b"#, "a\"b"),
            (r"a\\b", r"a\b"),
            (r"a\x01b", "a\u{1}b"),
            (r"a\u200bb", "a\u{200b}b"),
            ("ä", "ä"),
        ] {
            let error = format!("Permissions Violation for Publish to \"{quoted}\"");
            assert!(is_of(&error, subject), "{error}");
        }
        assert!(!is_of(r#"Permissions Violation for Publish to "a\"#, "a"));
    }
}
