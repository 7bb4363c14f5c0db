//! Checks that the database has everything that a consumer or a relay needs: the extension in a
//! version that the client supports, its functions on the `search_path`, and the grants of the
//! role.
//!
//! Without this check a missing function is noticed only when it is first used: a consumer without
//! `idem_reject` works until the first message fails.

use tokio_postgres::{error::SqlState, types::Type};

use crate::{Error, Executor, Row};

pub use crate::error::NotReady;

/// The functions that the consumer runtime and the HTTP layer use.
const OF_CONSUMERS: &[&str] = &[
    "idem_acquire",
    "idem_allow_commit",
    "idem_begin_call",
    "idem_bury",
    "idem_claim",
    "idem_claim_in_block",
    "idem_complete",
    "idem_effects",
    "idem_extend",
    "idem_finish_call",
    "idem_forbid_commit",
    "idem_is_claimed",
    "idem_next",
    "idem_next_wait",
    "idem_receive_bytes",
    "idem_record_effects",
    "idem_record_effects_batch",
    "idem_reject",
    "idem_release",
    "idem_send",
    "idem_send_bytes",
    "idem_try_claim",
    "idem_try_claim_batch",
    "idem_try_claim_uuid_batch",
];

/// The functions that the relay runtime uses.
const OF_RELAYS: &[&str] = &[
    "idem_relay_ack",
    "idem_relay_extend",
    "idem_relay_next",
    "idem_relay_park",
    "idem_relay_partitions",
    "idem_relay_wait",
];

/// The oldest SQL version that has all functions of this client. A newer version keeps the
/// functions that older clients use, so increase this version only when the client begins to use a
/// new function or argument.
const OLDEST_SQL: &str = "0.4.0";

const LOOK: &str = "
    SELECT pg_catalog.current_database()::text,
           current_user::text,
           pg_catalog.quote_literal(current_user),
           x.extversion,
           n.nspname::text,
           pg_catalog.quote_ident(n.nspname),
           pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
           ARRAY(SELECT need FROM pg_catalog.unnest($1) need
                  WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_proc f
                                     WHERE f.proname = need
                                       AND pg_catalog.pg_function_is_visible(f.oid))),
           ARRAY(SELECT need FROM pg_catalog.unnest($1) need
                  WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_proc f
                                     WHERE f.proname = need AND f.pronamespace = n.oid)),
           ARRAY(SELECT need FROM pg_catalog.unnest($1) need
                  WHERE EXISTS (SELECT FROM pg_catalog.pg_proc f
                                 WHERE f.proname = need AND pg_catalog.pg_function_is_visible(f.oid)
                                   AND NOT pg_catalog.has_function_privilege(f.oid, 'EXECUTE')))
      FROM (VALUES (1)) one
      LEFT JOIN pg_catalog.pg_extension x ON x.extname = 'idem'
      LEFT JOIN pg_catalog.pg_namespace n ON n.oid = x.extnamespace";

/// Checks that a consumer can work on this connection.
///
/// A consumer runs this check itself before its first fetch, and after each failure of the
/// database.
///
/// Fails with [`Error::NotReady`], which names what is missing and how to correct it.
pub async fn consumer_preflight(executor: &impl Executor) -> Result<(), Error> {
    preflight(executor, "consumer", OF_CONSUMERS).await
}

/// Checks that a relay can work on this connection.
///
/// A relay runs this check itself when it starts. `idem-relay --check` runs it too.
///
/// Fails with [`Error::NotReady`], which names what is missing and how to correct it.
pub async fn relay_preflight(executor: &impl Executor) -> Result<(), Error> {
    preflight(executor, "relay", OF_RELAYS).await
}

async fn preflight(executor: &impl Executor, kind: &str, functions: &[&str]) -> Result<(), Error> {
    let row = executor
        .fetch_one(LOOK, &[(&functions, Type::TEXT_ARRAY)])
        .await?;
    match Found::try_from(&row)?.lacks(kind) {
        Some(lacks) => Err(Error::NotReady(Box::new(lacks))),
        None => Ok(()),
    }
}

/// The relevant contents of the catalog.
#[derive(Clone, Debug, Default)]
struct Found {
    database: String,
    role: String,
    /// The role as a literal of SQL.
    role_sql: String,
    extension: Option<Extension>,
    /// Functions that are not found on the `search_path`.
    unseen: Vec<String>,
    /// Functions that are found, but that the role may not execute.
    refused: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Extension {
    version: String,
    schema: String,
    /// The name of the schema, quoted for SQL.
    schema_sql: String,
    may_use_schema: bool,
    /// Functions that the extension does not have.
    absent: Vec<String>,
}

impl TryFrom<&Row> for Found {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        let version: Option<String> = row.try_get(3)?;
        let extension = match version {
            Some(version) => Some(Extension {
                version,
                schema: row.try_get(4)?,
                schema_sql: row.try_get(5)?,
                may_use_schema: row.try_get(6)?,
                absent: row.try_get(8)?,
            }),
            None => None,
        };
        Ok(Self {
            database: row.try_get(0)?,
            role: row.try_get(1)?,
            role_sql: row.try_get(2)?,
            extension,
            unseen: row.try_get(7)?,
            refused: row.try_get(9)?,
        })
    }
}

impl Found {
    /// Returns the first problem to correct.
    fn lacks(&self, kind: &str) -> Option<NotReady> {
        let lacks = |state, message, hint| {
            Some(NotReady {
                state,
                message,
                hint,
            })
        };
        let role = &self.role;
        let grant =
            |schema: &str| format!("SELECT {schema}idem_grant({}, '{kind}');", self.role_sql);
        if let Some(Extension { version, .. }) = &self.extension
            && parts(version) < parts(OLDEST_SQL)
        {
            let message = format!(
                "extension idem has version {version}, \
                 but this client needs version {OLDEST_SQL} or later"
            );
            return lacks(
                SqlState::SYSTEM_ERROR,
                message,
                "ALTER EXTENSION idem UPDATE;".to_owned(),
            );
        }
        if !self.unseen.is_empty() {
            let Some(extension) = &self.extension else {
                let message = format!(
                    "extension idem is not installed in database {:?}",
                    self.database
                );
                return lacks(
                    SqlState::UNDEFINED_FUNCTION,
                    message,
                    "CREATE EXTENSION idem;".to_owned(),
                );
            };
            let Extension {
                schema,
                schema_sql,
                absent,
                ..
            } = extension;
            if !extension.may_use_schema {
                let message =
                    format!("role {role:?} may not use schema {schema:?} of extension idem");
                return lacks(
                    SqlState::INSUFFICIENT_PRIVILEGE,
                    message,
                    grant(&format!("{schema_sql}.")),
                );
            }
            if !absent.is_empty() {
                let message = format!(
                    "extension idem {} has no function {}",
                    extension.version,
                    absent.join(", ")
                );
                let hint = "Use the version of the client that matches the extension.".to_owned();
                return lacks(SqlState::UNDEFINED_FUNCTION, message, hint);
            }
            let message = format!(
                "extension idem is in schema {schema:?}, \
                 which is not on the search_path of role {role:?}"
            );
            let hint = format!(
                "Use PoolConfig::schema({schema:?}), database.schema of idem-relay, \
                 or ALTER ROLE ... SET search_path = {schema_sql}, public;"
            );
            return lacks(SqlState::UNDEFINED_FUNCTION, message, hint);
        }
        if !self.refused.is_empty() {
            let message = format!("role {role:?} may not call {}", self.refused.join(", "));
            return lacks(SqlState::INSUFFICIENT_PRIVILEGE, message, grant(""));
        }
        None
    }
}

/// Returns the numbers of a version, for comparison.
fn parts(version: &str) -> Vec<u64> {
    version
        .split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn extension(version: &str) -> Found {
        Found {
            extension: Some(Extension {
                version: version.to_owned(),
                schema: "api".to_owned(),
                may_use_schema: true,
                ..Extension::default()
            }),
            ..Found::default()
        }
    }

    #[test]
    fn newer_sql_is_accepted_and_older_is_not() {
        assert_eq!(extension(OLDEST_SQL).lacks("relay"), None);
        assert_eq!(extension("10.0.0").lacks("relay"), None);
        let older = extension("0.1.9").lacks("relay").unwrap();
        assert_eq!(
            (older.state.code(), older.kind()),
            ("58000", ErrorKind::NotInstalled)
        );
    }

    #[test]
    fn functions_without_the_extension_are_accepted() {
        assert_eq!(Found::default().lacks("consumer"), None);
    }

    #[test]
    fn schema_without_usage_is_a_missing_grant() {
        let mut found = extension(OLDEST_SQL);
        found.unseen = vec!["idem_claim".to_owned()];
        assert!(
            found
                .lacks("consumer")
                .unwrap()
                .to_string()
                .contains("search_path")
        );
        if let Some(extension) = &mut found.extension {
            extension.may_use_schema = false;
        }
        assert_eq!(
            found.lacks("consumer").unwrap().kind(),
            ErrorKind::NotGranted
        );
    }
}
