//! The tables that a restore has loaded: the rows of idem.loaded_table. See
//! sql/internal/restore.sql.

use super::fence::{invalidate, invalidate_at_once};
use crate::errors::{Error, Result};
use crate::pg::{self, Table, for_each_row, insert_permanently};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

/// A table that a transaction has loaded, or is loading.
struct Load {
    table: String,
    tx: u64,
    is_running: bool,
}

pub struct Loads(Vec<Load>);

impl Loads {
    pub fn read() -> Result<Self> {
        let mut loads = Vec::new();
        for_each_row(table(c"loaded_table")?, |column| {
            // SAFETY: the column is text.
            let name = column(1).and_then(|d| unsafe { String::from_datum(d, false) });
            let tx = column(2).map(|d| d.value() as u64);
            let Some((table, tx)) = name.zip(tx) else {
                return;
            };
            let status = pg::transaction_status(tx);
            if status != pg::Status::Aborted {
                loads.push(Load {
                    table,
                    tx,
                    is_running: status == pg::Status::Running,
                });
            }
        });
        Ok(Loads(loads))
    }

    /// Returns whether one transaction has loaded all tables of state and has committed, or nothing
    /// was loaded. A restore in several transactions does not show when its last slice is loaded.
    /// pg_dump sorts tables by name, so one transaction that has loaded the rings has loaded the
    /// slices too.
    pub fn are_complete(&self, state: &[&CStr]) -> bool {
        let Some(first) = self.0.first() else {
            return true;
        };
        let is_loaded = |name: &[u8]| self.0.iter().any(|load| load.table.as_bytes() == name);
        self.0
            .iter()
            .all(|load| load.tx == first.tx && !load.is_running)
            && state.iter().all(|name| is_loaded(name.to_bytes()))
    }

    /// Returns whether another load of the table changes nothing: this transaction has noted it, or
    /// two transactions that have ended have.
    fn have(&self, table: &str, tx: u64) -> bool {
        let of_table = || self.0.iter().filter(|load| load.table == table);
        let mut ended = of_table().filter(|load| !load.is_running);
        of_table().any(|load| load.tx == tx) || ended.nth(1).is_some()
    }
}

/// Records that the running command inserts into the table. Every other session knows it before the
/// first row is inserted: otherwise a consumer would claim with the slices of an empty database
/// until the COPY commits. The note of a transaction that rolls back does not count.
pub fn record_load(loaded: pg_sys::Oid) -> Result<()> {
    if pg::is_in_security_definer() || pg::is_creating_extension() {
        return Ok(()); // a function of idem, or CREATE EXTENSION, inserts its own rows
    }
    let dropped = Error::Corrupt("a table was dropped while it was loaded");
    let name = pg::relation_name(loaded).ok_or(dropped)?;
    let tx = pg::transaction_id();
    let loads = Table::with_index(table(c"loaded_table")?, c"loaded_table_pkey", true)?;
    let is_noted = pg::with_exclusive_lock(loads.oid(), || {
        let has_note = Loads::read()?.have(&name, tx);
        let row = [name.into_datum(), Some(pg_sys::Datum::from(tx))];
        Ok::<_, Error>(!has_note && insert_permanently(&loads, &row))
    })?;
    if is_noted {
        invalidate(loads.oid());
        invalidate_at_once(loads.oid());
    }
    Ok(())
}

pub(super) fn table(name: &CStr) -> Result<pgrx::pg_sys::Oid> {
    pg::relation(name)
}
