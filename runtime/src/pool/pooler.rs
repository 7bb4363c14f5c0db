//! Detects a pooler that can run a session with the `search_path` of another client.
//!
//! PgBouncer 1.26 accepts a `search_path` at the start of a session and sets it for each client. It
//! relies on the server to report each change of the path, as PostgreSQL does since version 18.
//! With an older PostgreSQL, PgBouncer 1.26.1 in transaction mode runs statements of one client
//! with the path of another client, and in session mode it does not notice that `DISCARD ALL`
//! resets the path. Earlier versions of PgBouncer reject the setting.
//!
//! Only a pooler that reports its version is detected. Paths that are equal for all clients, and a
//! server before 18 that reports the path (Citus), would be safe and are rejected too.

use super::schema::sets_path;

/// The first major version of PostgreSQL that reports changes of the `search_path`.
const REPORTS_PATH: u16 = 18;

/// Returns an error text if these options set the path and the pooler can mix up the paths of its
/// clients. `parameter` returns what the server reported about the session.
pub(super) fn mixes_up<'a>(
    options: &str,
    parameter: impl Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    let mode = parameter("pgbouncer.pool_mode")?;
    let server = parameter("server_version")?;
    if !sets_path(options) || major(server) >= REPORTS_PATH {
        return None;
    }
    let version = parameter("pgbouncer.version").unwrap_or_default();
    Some(format!(
        "PgBouncer {version} in {mode} mode with PostgreSQL {server} can run statements with the \
         search_path of another client (the settings of the client send a search_path as a startup \
         parameter: remove it, and set the path of the role with ALTER ROLE ... SET search_path)"
    ))
}

/// Returns the major version, or 0 if the text does not begin with a number.
fn major(version: &str) -> u16 {
    let end = version.find(|c: char| !c.is_ascii_digit());
    version[..end.unwrap_or(version.len())].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = r#"-c search_path="api",\ "$user",\ public"#;

    fn found(options: &str, mode: Option<&str>, server: &str) -> Option<String> {
        mixes_up(options, |name| match name {
            "pgbouncer.pool_mode" => mode,
            "pgbouncer.version" => mode.map(|_| "1.26.1"),
            "server_version" => Some(server),
            _ => None,
        })
    }

    #[test]
    fn path_before_postgresql_18_through_pgbouncer_is_an_error() {
        for mode in ["transaction", "statement", "session"] {
            let error = found(PATH, Some(mode), "17.12 (Debian 17.12-0+deb13u1)").unwrap();
            assert!(error.contains("PgBouncer 1.26.1"), "{error}");
            assert!(
                error.contains("search_path as a startup parameter"),
                "{error}"
            );
        }
        let upper = found("-c SEARCH_PATH=api", Some("transaction"), "15.14");
        assert!(upper.is_some(), "PostgreSQL ignores the case of a name");
    }

    #[test]
    fn path_is_accepted_where_every_client_has_its_own() {
        assert_eq!(found(PATH, None, "15.14"), None);
        assert_eq!(found(PATH, Some("session"), "18.6"), None);
        assert_eq!(found(PATH, Some("transaction"), "18.6"), None);
        assert_eq!(found(PATH, Some("transaction"), "19rc1"), None);
        assert_eq!(
            found("-c statement_timeout=7", Some("transaction"), "15.14"),
            None
        );
    }
}
