//! Checks that the server has loaded the library at its start, and that the library supports the
//! version of the extension's SQL. The two versions can differ: an updated server loads the new
//! library while a database still has the old SQL, or the SQL is newer than the library.
//!
//! The check is done whenever the state of the rings is read, and by each function that takes the
//! name of a relay. `idem_relay_wait` takes no name and does not check the version. A script of
//! ALTER EXTENSION UPDATE ends with `SELECT idem.invalidate('idem.ring'::regclass)`, so that
//! sessions that have cached the rings check again.

use crate::errors::{self, Error};
use crate::pg::for_each_row;
use crate::shared::ensure_preloaded;
use pgrx::pg_sys;
use pgrx::prelude::*;

const LIBRARY: &str = env!("CARGO_PKG_VERSION");

/// Fails with 58000 unless the library was preloaded and supports the version that is installed in
/// this database.
pub fn check_version() -> errors::Result<()> {
    ensure_preloaded()?;
    let installed = installed_version().ok_or(Error::NotInstalled)?;
    if installed == LIBRARY {
        return Ok(());
    }
    let installed_is_older = parts(&installed) < parts(LIBRARY);
    Err(Error::VersionMismatch {
        installed,
        installed_is_older,
        library: LIBRARY,
    })
}

/// Returns the latest committed value of `pg_extension.extversion`.
fn installed_version() -> Option<String> {
    let mut version = None;
    for_each_row(pg_sys::ExtensionRelationId, |column| {
        // SAFETY: extname is a name and extversion a text, in every PostgreSQL version since 9.1.
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

/// Splits a version into its numbers, for comparison.
fn parts(version: &str) -> Vec<u64> {
    version
        .split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}
