//! Puts the schema of the extension into the `search_path` at the start of a session.
//!
//! The statement `SET` is not used. On a direct connection it would do the same, but through a
//! pooler in transaction mode it can also change sessions of other clients. PgBouncer before 1.26
//! rejects the setting at the start. Later versions set the path for each client. Where they would
//! mix up the paths of clients, the module `pooler` rejects the connection.

use crate::{Error, pool::options::invalid};

/// The longest name, in bytes. PostgreSQL truncates longer names.
const LONGEST_NAME: usize = 63;

/// Returns the server option that puts this schema before the default path of PostgreSQL.
///
/// The schema comes first, so that no function of the same name is called in a schema that other
/// roles may write to.
pub(super) fn search_path(schema: &str) -> Result<String, Error> {
    if schema.is_empty() || schema.len() > LONGEST_NAME || schema.contains('\0') {
        return Err(invalid(&format!(
            "the name of a schema has 1 to {LONGEST_NAME} bytes, and none is zero"
        )));
    }
    let path = format!("\"{}\", \"$user\", public", schema.replace('"', "\"\""));
    Ok(format!("-c search_path={}", escape(&path)))
}

/// Returns whether these server options set the path. PostgreSQL ignores the case of a name.
pub(super) fn sets_path(options: &str) -> bool {
    options.to_ascii_lowercase().contains("search_path")
}

/// Escapes a value, because the server splits options at white space without a backslash before it.
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
