//! The handshake between the library and the SQL of the extension: a server that was updated loads
//! the new library while a database still has the old SQL, and the other way round.
//!
//! It is made whenever the state of the rings is read, and by each function that names a relay.
//! `idem_relay_wait` names none and does not make it. A script of ALTER EXTENSION UPDATE ends with
//! `SELECT idem.invalidate('idem.ring'::regclass)`, so that sessions which know the rings make it
//! again.

use crate::errors::{self, Error};
use crate::pg::for_each_row;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

const LIBRARY: &str = env!("CARGO_PKG_VERSION");
/// The versions of the SQL that this library serves: its own, and the previous one when there is
/// one that it can serve.
const SERVED: &[&str] = &[LIBRARY];

/// 58000 unless the library serves the version that is installed in this database.
pub fn check_version() -> errors::Result<()> {
    let installed = installed_version().ok_or(Error::NotInstalled)?;
    if SERVED.contains(&installed.as_str()) {
        return Ok(());
    }
    let installed_is_older = parts(&installed) < parts(LIBRARY);
    Err(Error::AnotherVersion {
        installed,
        installed_is_older,
        library: LIBRARY,
    })
}

/// The same for functions in PL/pgSQL, which do not read the rings.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.check_version() RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'check_version_for_sql_wrapper';
COMMENT ON FUNCTION idem.check_version() IS 'Errors: 58000 (the library does not serve this version of the extension).';
"#
)]
fn check_version_for_sql() -> Result<(), ErrorReport> {
    check_version().map_err(ErrorReport::from)
}

/// `pg_extension.extversion`, as it is now.
fn installed_version() -> Option<String> {
    let mut version = None;
    for_each_row(pg_sys::ExtensionRelationId, |column| {
        // SAFETY: extname is a name and extversion a text; both are columns of every version of
        // PostgreSQL since 9.1.
        unsafe {
            let is_idem = column(2).is_some_and(|name| {
                let name = name.cast_mut_ptr::<pg_sys::NameData>();
                std::ffi::CStr::from_ptr((*name).data.as_ptr()) == c"idem"
            });
            if is_idem && let Some(datum) = column(6) {
                version = String::from_datum(datum, false);
            }
        }
    });
    version
}

/// The numbers of a version, for comparison.
fn parts(version: &str) -> Vec<u64> {
    version
        .split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}
