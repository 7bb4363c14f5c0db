//! Keys of message ids and numbers of destinations, for the functions that are written in SQL.
//! These functions follow the rules of the claims and use the same caches.

use crate::claim::text_id;
use crate::destination::{find, intern};
use crate::errors::given;
use crate::pg::ensure_writable;
use crate::ring;
use pgrx::Uuid;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Returns the key of a text id. A text that spells a uuid is that uuid.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.key_of(id text) RETURNS uuid
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'key_of_wrapper';
"#
)]
fn key_of(id: Option<&str>) -> Result<Uuid, ErrorReport> {
    Ok(Uuid::from_bytes(*text_id(id)?.key.bytes()))
}

/// Returns the number of a destination, or NULL if the destination does not exist.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.find_destination(name text) RETURNS integer
LANGUAGE c AS 'MODULE_PATHNAME', 'find_destination_wrapper';
"#
)]
fn find_destination(name: Option<&str>) -> Result<Option<i32>, ErrorReport> {
    let name = given(name, "destination")?;
    ring::look()?;
    Ok(find(name)?.map(|destination| destination.id))
}

/// Returns the number of a destination and creates it if it does not exist.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.intern_destination(name text) RETURNS integer
LANGUAGE c AS 'MODULE_PATHNAME', 'intern_destination_wrapper';
"#
)]
fn intern_destination(name: Option<&str>) -> Result<i32, ErrorReport> {
    let name = given(name, "destination")?;
    ensure_writable(c"idem.intern_destination()");
    Ok(intern(name, &ring::enter()?)?.id)
}
