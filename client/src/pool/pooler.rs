//! Detects a pooler that would run a session with the `search_path` of another client.
//!
//! PgBouncer 1.26 accepts a `search_path` at the start of a session. In transaction mode it sets
//! the path on the backend again for each client. It relies on the server to report changes of the
//! path, which PostgreSQL does since version 18. With an older PostgreSQL, PgBouncer 1.26.1 sets
//! the path of one client for another after a few transactions. Earlier versions of PgBouncer
//! reject the setting.

/// The first major version of PostgreSQL that reports changes of the `search_path`.
const REPORTS_PATH: u16 = 18;

/// Returns an error text if these options set the path and the pooler mixes up the paths of its
/// clients. `parameter` returns what the server reported about the session.
pub(super) fn mixes_up<'a>(
    options: &str,
    parameter: impl Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    let mode = parameter("pgbouncer.pool_mode")?;
    let server = parameter("server_version")?;
    if !options.contains("search_path") || mode == "session" || major(server) >= REPORTS_PATH {
        return None;
    }
    let pooler = parameter("pgbouncer.version").unwrap_or_default();
    Some(format!(
        "PgBouncer {pooler} in {mode} mode mixes up the paths of its clients with \
         PostgreSQL {server}: do not set search_path as a startup parameter, but for the role \
         (ALTER ROLE ... SET search_path)"
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
        for mode in ["transaction", "statement"] {
            let error = found(PATH, Some(mode), "17.12 (Debian 17.12-0+deb13u1)").unwrap();
            assert!(error.contains("PgBouncer 1.26.1"), "{error}");
            assert!(
                error.contains("search_path as a startup parameter"),
                "{error}"
            );
        }
    }

    #[test]
    fn path_is_accepted_where_every_client_has_its_own() {
        assert_eq!(found(PATH, None, "15.14"), None);
        assert_eq!(found(PATH, Some("session"), "15.14"), None);
        assert_eq!(found(PATH, Some("transaction"), "18.6"), None);
        assert_eq!(found(PATH, Some("transaction"), "19rc1"), None);
        assert_eq!(
            found("-c statement_timeout=7", Some("transaction"), "15.14"),
            None
        );
    }
}
