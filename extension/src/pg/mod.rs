//! PostgreSQL functions that need `unsafe`, each behind a type that ensures its preconditions.

mod append;
mod delete;
mod fence;
mod find_in;
mod hold;
mod insert;
mod insert_many;
mod kept;
mod lookup;
mod now;
mod opened;
mod permanent;
mod scratch;
mod segments;
mod settle;
mod subtransaction;
mod table;
mod triggers;
mod unbound;
mod versions;
mod walk;
mod writer;

pub use append::Appender;
pub use fence::{Locker, lockers_of, sleep_ms, still_running};
pub use find_in::{FoundIn, find_in, scan_in};
pub use hold::Hold;
pub use insert::{Inserted, Inserter};
pub use insert_many::ManyInserter;
pub use kept::{close_kept_tables, has_kept_tables};
pub use lookup::{Found, Lookup};
pub use now::{for_each_row, latest};
pub use permanent::{insert_permanently, is_published};
pub use scratch::{Home, Scratch};
pub use segments::Segment;
pub use settle::Settled;
pub use subtransaction::{cached_subtransactions, in_subtransaction};
pub use table::Table;
pub use unbound::next_value;
pub use versions::{estimated_rows, for_each_version};
pub use walk::{Latest, Walk, condition, equals, null_condition};
pub use writer::{Writer, look_again};

use crate::errors::{Error, Result};
use pgrx::pg_sys;

/// Fails with 25006 on a standby and in a read-only transaction. The callers write without the
/// executor, which would check this. `call` is the name of the SQL function.
pub fn ensure_writable(call: &std::ffi::CStr) {
    // SAFETY: the functions raise an error or return; the name outlives them.
    unsafe {
        if is_standby() {
            let function = call.to_string_lossy().into_owned();
            Error::Standby { function }.raise();
        }
        pg_sys::PreventCommandIfReadOnly(call.as_ptr());
        pg_sys::PreventCommandIfParallelMode(call.as_ptr());
    }
}

/// Fails with 25006 if the transaction cannot write, and with 25000 unless it is READ COMMITTED.
/// The callers execute SQL that must see the latest committed state before they write.
pub fn ensure_newest_state(call: &std::ffi::CStr) -> Result<()> {
    ensure_writable(call);
    // SAFETY: reads a variable of the transaction.
    if unsafe { pg_sys::XactIsoLevel } >= pg_sys::XACT_REPEATABLE_READ as i32 {
        return Err(Error::NeedsReadCommitted {
            function: call.to_string_lossy().into_owned(),
        });
    }
    Ok(())
}

/// Returns whether the role may execute the function.
pub fn may_execute(role: pg_sys::Oid, function: pg_sys::Oid) -> bool {
    let execute = pg_sys::ACL_EXECUTE as pg_sys::AclMode;
    // SAFETY: the caller is in a transaction that has not failed, so the catalogs can be read.
    unsafe {
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_proc_aclcheck(function, role, execute);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, role, execute);
        result == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Returns whether this server is a standby.
pub fn is_standby() -> bool {
    // SAFETY: reads the state of the server.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Returns whether subscribers can decode rows from the WAL. They then also get a row that was
/// inserted and deleted again, unless its insertion was speculative.
pub fn is_decoded() -> bool {
    // SAFETY: reads a setting that changes only at the start of the server.
    unsafe { pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_LOGICAL as i32 }
}

/// Returns whether a function with SECURITY DEFINER runs the current command.
pub fn is_in_security_definer() -> bool {
    let (mut user, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: the function fills the variables.
    unsafe { pg_sys::GetUserIdAndSecContext(&mut user, &mut context) };
    context & pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32 != 0
}

/// Returns whether CREATE EXTENSION or ALTER EXTENSION runs the current command.
pub fn is_creating_extension() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::creating_extension }
}

/// Returns the id of the transaction, which gets one if it has none.
pub fn transaction_id() -> u64 {
    // SAFETY: a transaction is open.
    unsafe { pg_sys::GetTopFullTransactionId() }.value
}

/// What the server knows about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Running,
    /// Also after a crash.
    Aborted,
    /// Committed, or so old that the server does not know it any more, or of another cluster.
    Ended,
}

/// Returns the status of the transaction with this id.
pub fn transaction_status(tx: u64) -> Status {
    // SAFETY: reads a counter in shared memory.
    if tx >= unsafe { pg_sys::ReadNextFullTransactionId() }.value {
        return Status::Ended; // pg_xact_status would raise an error
    }
    let tx = [Some(pg_sys::Datum::from(tx))];
    // SAFETY: the argument of pg_xact_status is an xid8, which is passed by value, and the result
    // is text.
    let status: Option<String> = unsafe { pgrx::direct_function_call(pg_sys::pg_xact_status, &tx) };
    match status.as_deref() {
        Some("in progress") => Status::Running,
        Some("aborted") => Status::Aborted,
        _ => Status::Ended,
    }
}

/// Returns a function of the table's access method, or raises 58000 if there is none.
///
/// # Safety
/// `heap` is an open table.
unsafe fn routine<T>(
    heap: pg_sys::Relation,
    pick: impl FnOnce(&pg_sys::TableAmRoutine) -> Option<T>,
) -> T {
    // SAFETY: by the contract of this function.
    let routines = unsafe { (*heap).rd_tableam.as_ref() };
    let picked = routines.and_then(pick);
    picked.unwrap_or_else(|| Error::OtherAccessMethod.raise())
}

/// The sub-object in the tag of an exclusive lock. SQL commands lock the whole object, so they do
/// not conflict with these locks.
const PART: u16 = 1;
const EXCLUSIVE: pg_sys::LOCKMODE = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;

/// Runs `work` for a relation in one backend at a time. `work` must not wait for another
/// transaction.
pub fn with_exclusive_lock<T>(relation: pg_sys::Oid, work: impl FnOnce() -> T) -> T {
    // SAFETY: any object can be locked; after an error the end of the transaction unlocks it.
    unsafe {
        pg_sys::LockDatabaseObject(pg_sys::RelationRelationId, relation, PART, EXCLUSIVE);
        let result = work();
        pg_sys::UnlockDatabaseObject(pg_sys::RelationRelationId, relation, PART, EXCLUSIVE);
        result
    }
}

/// Like [`with_exclusive_lock`], but returns `None` if another backend has the lock. `work` may
/// take long.
pub fn try_with_exclusive_lock<T>(relation: pg_sys::Oid, work: impl FnOnce() -> T) -> Option<T> {
    try_exclusive_lock(relation).then(|| {
        let result = work();
        // SAFETY: as in `with_exclusive_lock`.
        unsafe {
            let class = pg_sys::RelationRelationId;
            pg_sys::UnlockDatabaseObject(class, relation, PART, EXCLUSIVE);
        }
        result
    })
}

/// Takes the lock of [`with_exclusive_lock`] until the end of the transaction. Returns false if
/// another backend has the lock.
pub fn try_exclusive_lock(relation: pg_sys::Oid) -> bool {
    let class = pg_sys::RelationRelationId;
    // SAFETY: as in `with_exclusive_lock`.
    unsafe { pg_sys::ConditionalLockDatabaseObject(class, relation, PART, EXCLUSIVE) }
}

/// Returns whether a command holds a lock with which no session can connect to a database: DROP
/// DATABASE, ALTER DATABASE RENAME, CREATE DATABASE TEMPLATE. Call it in a transaction.
pub fn excludes_sessions(database: pg_sys::Oid) -> bool {
    // SAFETY: an all-zero LOCKTAG is filled as SET_LOCKTAG_OBJECT does. The lock is the one that a
    // session takes while it connects, and it is released at once.
    unsafe {
        let mut tag: pg_sys::LOCKTAG = std::mem::zeroed();
        tag.locktag_field2 = pg_sys::DatabaseRelationId.to_u32();
        tag.locktag_field3 = database.to_u32();
        tag.locktag_type = pg_sys::LockTagType::LOCKTAG_OBJECT as u8;
        tag.locktag_lockmethodid = pg_sys::DEFAULT_LOCKMETHOD as u8;
        let mode = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
        let acquired = pg_sys::LockAcquire(&tag, mode, false, true)
            != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if acquired {
            pg_sys::LockRelease(&tag, mode, false);
        }
        !acquired
    }
}

/// Returns the OID of a relation of schema idem. Fails with 58000 if it does not exist.
pub fn relation(name: &std::ffi::CStr) -> Result<pg_sys::Oid> {
    relation_oid(name).ok_or_else(|| {
        // SAFETY: a look-up in the system cache by a NUL-terminated name.
        let schema = unsafe { pg_sys::get_namespace_oid(c"idem".as_ptr(), true) };
        if schema == pg_sys::InvalidOid {
            return Error::NotInstalled;
        }
        Error::Missing {
            relation: name.to_string_lossy().into_owned(),
        }
    })
}

/// Returns the OID of a relation of schema idem; `None` if it does not exist.
pub fn relation_oid(name: &std::ffi::CStr) -> Option<pg_sys::Oid> {
    // SAFETY: these are look-ups in the system caches by NUL-terminated names.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(c"idem".as_ptr(), true);
        if schema == pg_sys::InvalidOid {
            return None;
        }
        pg_sys::get_relname_relid(name.as_ptr(), schema)
    };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Returns the name of a relation without its schema; `None` if the relation does not exist.
pub fn relation_name(relation: pg_sys::Oid) -> Option<String> {
    // SAFETY: a look-up in the system cache, which returns a NUL-terminated copy or NULL.
    unsafe {
        let name = pg_sys::get_rel_name(relation);
        (!name.is_null()).then(|| {
            let copy = std::ffi::CStr::from_ptr(name)
                .to_string_lossy()
                .into_owned();
            pg_sys::pfree(name.cast());
            copy
        })
    }
}

/// Returns the size of a value in bytes as a reader gets it: not compressed, and without its
/// header.
///
/// # Safety
/// The value is of a type of variable length, and not NULL.
pub unsafe fn size_of(value: pg_sys::Datum) -> usize {
    // SAFETY: guaranteed by the caller. The size of a value that is stored out of line is in its
    // pointer.
    unsafe { pg_sys::toast_raw_datum_size(value) }.saturating_sub(pg_sys::VARHDRSZ)
}

/// Returns the start of the current transaction in microseconds since 2000, like `now()`.
pub fn transaction_start() -> pg_sys::TimestampTz {
    // SAFETY: reads a variable of the transaction.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

/// Returns the clock in microseconds since 2000, like `clock_timestamp()`.
pub fn clock() -> pg_sys::TimestampTz {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// The microseconds from 1970 to 2000, where the times of PostgreSQL begin.
const EPOCHS_APART: i64 = 946_684_800_000_000;

/// Returns the present time in microseconds since 1970.
pub fn now_unix() -> i64 {
    clock().saturating_add(EPOCHS_APART)
}

/// Converts microseconds since 1970.
pub fn from_unix(microseconds: i64) -> pg_sys::TimestampTz {
    microseconds.saturating_sub(EPOCHS_APART)
}

/// Returns these rows from a set-returning function. They have the function's own result type.
pub fn return_rows<const N: usize>(
    fcinfo: pg_sys::FunctionCallInfo,
    rows: impl Iterator<Item = [Option<pg_sys::Datum>; N]>,
) {
    // SAFETY: InitMaterializedSRF raises an error unless the caller accepts a set. It provides a
    // tuplestore and a row type with as many columns as the SQL of the function declares, which is
    // N.
    unsafe {
        pg_sys::InitMaterializedSRF(fcinfo, 0);
        let result = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        for row in rows {
            let mut values = row.map(|value| value.unwrap_or(pg_sys::Datum::from(0)));
            let mut nulls = row.map(|value| value.is_none());
            pg_sys::tuplestore_putvalues(
                (*result).setResult,
                (*result).setDesc,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        }
    }
}
