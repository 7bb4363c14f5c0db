//! The schema of the extension as a setting of the session, sent when it begins.
//!
//! `SET` would do the same for a direct connection. Through a pooler in transaction mode it changes
//! sessions that other clients use, too, where the startup packet is refused.

use crate::{Error, pool::options::invalid};

/// PostgreSQL shortens longer names.
const LONGEST_NAME: usize = 63;

/// The option of the server that puts this schema before the path that PostgreSQL has by default.
///
/// First: a function of the same name in a schema that others may write to must not be called.
pub(super) fn search_path(schema: &str) -> Result<String, Error> {
    if schema.is_empty() || schema.len() > LONGEST_NAME || schema.contains('\0') {
        return Err(invalid(&format!(
            "the name of a schema has 1 to {LONGEST_NAME} bytes, and none is zero"
        )));
    }
    let path = format!("\"{}\", \"$user\", public", schema.replace('"', "\"\""));
    Ok(format!("-c search_path={}", escape(&path)))
}

/// The server splits options at white space, unless a backslash stands before it.
fn escape(value: &str) -> String {
    let mut escaped = String::new();
    for c in value.chars() {
        if c == '\\' || c.is_ascii_whitespace() || c == '\x0b' {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_one_identifier_of_one_option() {
        assert_eq!(
            search_path("api").unwrap(),
            r#"-c search_path="api",\ "$user",\ public"#
        );
        assert_eq!(
            search_path("a\" -c x\\").unwrap(),
            r#"-c search_path="a""\ -c\ x\\",\ "$user",\ public"#
        );
    }
}
