//! The identity of the installation, and whether the database is being restored: see
//! sql/internal/restore.sql.

use super::loads::{Loads, table};
use crate::errors::{Error, Result};
use crate::pg::for_each_row;
use idem_core::Salt;
use pgrx::{FromDatum, Uuid};
use std::ffi::CStr;

/// The tables of state, each with its column `installation`, counted from 1.
const STATE: [(&CStr, i32); 5] = [
    (c"installation", 2),
    (c"clock", 9),
    (c"ring", 16),
    (c"pending_rotation", 4),
    (c"payload_rotation", 9),
];

/// The installation to which the state of this database belongs.
#[derive(Debug, Clone, Copy)]
pub struct Installation {
    pub salt: Salt,
    /// Whether a restore has begun to load a table and is not finished.
    pub restoring: bool,
}

impl Installation {
    /// Reads the latest committed state.
    pub fn read() -> Result<Self> {
        let read = Self::read_once()?;
        // Each table is read with a snapshot of its own, and a transaction that changes all of them
        // may have committed in between.
        if read.restoring {
            return Self::read_once();
        }
        Ok(read)
    }

    fn read_once() -> Result<Self> {
        let (mut first, mut is_mixed) = (None, false);
        for (name, column_number) in STATE {
            for_each_row(table(name)?, |column| {
                // SAFETY: the column is a uuid.
                let id = column(column_number).and_then(|d| unsafe { Uuid::from_datum(d, false) });
                is_mixed |= id.is_none() || first.is_some() && first != id;
                first = first.or(id);
            });
        }
        let salt = first.ok_or(Error::Corrupt("the row of idem.installation is missing"))?;
        Ok(Installation {
            salt: Salt(*salt.as_bytes()),
            restoring: is_mixed || !Loads::read()?.are_complete(&STATE.map(|(name, _)| name)),
        })
    }
}

/// Fails with 58000 while the database is being restored.
pub fn ensure_restored() -> Result<()> {
    match Installation::read()?.restoring {
        true => Err(Error::Restoring),
        false => Ok(()),
    }
}
