//! Functions for SQL that read and extend the errors of a pending message (see
//! `idem_core::failure`).

use crate::errors::given;
use crate::pg;
use crate::sql_types::JsonText;
use idem_core::{Failure, is_last_failure, note_failure};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Returns the present time in microseconds since 1970.
pub fn now_unix() -> i64 {
    unix(pg::clock())
}

/// Converts PostgreSQL's microseconds since 2000 to microseconds since 1970.
fn unix(at: pg_sys::TimestampTz) -> i64 {
    const EPOCHS_APART: i64 = 946_684_800_000_000;
    at.saturating_add(EPOCHS_APART)
}

/// Appends an error to the errors of a message.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.note_failure(
    errors jsonb, attempt integer, error text, final boolean
) RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'note_failure_sql_wrapper';
"#
)]
fn note_failure_sql(
    errors: Option<JsonText>,
    attempt: Option<i32>,
    error: Option<&str>,
    is_final: Option<bool>,
) -> Result<String, ErrorReport> {
    let failure = Failure::Reported {
        error: given(error, "error")?,
        is_final: given(is_final, "final")?,
    };
    Ok(note_failure(
        given(errors, "errors")?.as_str(),
        now_unix(),
        given(attempt, "attempt")?,
        failure,
    ))
}

/// Appends the error of an attempt that ended with an expired lease.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.note_expired_lease(errors jsonb, attempt integer) RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'note_expired_lease_wrapper';
"#
)]
fn note_expired_lease(
    errors: Option<JsonText>,
    attempt: Option<i32>,
) -> Result<String, ErrorReport> {
    Ok(note_failure(
        given(errors, "errors")?.as_str(),
        now_unix(),
        given(attempt, "attempt")?,
        Failure::LeaseExpired,
    ))
}

/// Returns whether the newest error belongs to this attempt and has this text.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.is_last_failure(errors jsonb, attempt integer, error text) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'is_last_failure_sql_wrapper';
"#
)]
fn is_last_failure_sql(
    errors: Option<JsonText>,
    attempt: Option<i32>,
    error: Option<&str>,
) -> Result<bool, ErrorReport> {
    Ok(is_last_failure(
        given(errors, "errors")?.as_str(),
        given(attempt, "attempt")?,
        given(error, "error")?,
    ))
}
