//! The few calls into PostgreSQL that need `unsafe`, each behind a type that keeps its promises.

mod append;
mod fence;
mod hold;
mod insert;
mod lookup;
mod now;
mod scratch;
mod table;
mod unbound;
mod walk;

pub use append::Appender;
pub use fence::{Lockers, wait_a_moment};
pub use hold::Hold;
pub use insert::{Inserted, Inserter, insert_unique};
pub use lookup::{Found, Lookup};
pub use now::{for_each_row, latest};
pub use scratch::Scratch;
pub use table::Table;
pub use unbound::next_value;
pub use walk::{Latest, Walk, condition, null_condition};

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};

/// Waits until the transaction ends, or only until its speculative insertion is decided.
pub fn wait_for(xid: pg_sys::TransactionId, speculative_token: u32) {
    // SAFETY: both take any xid; they raise on cancel and lock_timeout. No relation is named: it
    // serves error context only.
    unsafe {
        if speculative_token != 0 {
            pg_sys::SpeculativeInsertionWait(xid, speculative_token);
        } else {
            pg_sys::XactLockTableWait(
                xid,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                pg_sys::XLTW_Oper::XLTW_None,
            );
        }
    }
}

/// 25006 on a standby and in a read-only transaction: nothing else on these paths refuses to write
/// there.
pub fn ensure_writable(call: &std::ffi::CStr) {
    // SAFETY: they raise or return; the name outlives the call.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            raise(
                PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                format!("cannot execute {} during recovery", call.to_string_lossy()),
                "Send claims to the primary. A standby serves idem_is_claimed, idem_effects and idem_calls.",
            );
        }
        pg_sys::PreventCommandIfReadOnly(call.as_ptr());
        pg_sys::PreventCommandIfParallelMode(call.as_ptr());
    }
}

/// Ends the statement with an error, from where no `Result` leads out.
fn raise(code: PgSqlErrorCode, message: String, hint: &'static str) {
    ErrorReport::new(code, message, "idem")
        .set_hint(hint)
        .report(PgLogLevel::ERROR);
}

/// Does what only one backend at a time may do with a relation. `work` must not wait for another
/// transaction.
pub fn one_at_a_time<T>(relation: pg_sys::Oid, work: impl FnOnce() -> T) -> T {
    /// Apart from the locks of commands, which name the object as a whole.
    const PART: u16 = 1;
    let lock = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: any object can be locked; after an error the end of the transaction unlocks it.
    unsafe {
        pg_sys::LockDatabaseObject(pg_sys::RelationRelationId, relation, PART, lock);
        let result = work();
        pg_sys::UnlockDatabaseObject(pg_sys::RelationRelationId, relation, PART, lock);
        result
    }
}

/// The OID of a relation of schema idem; `None` when there is no such relation.
pub fn relation_oid(name: &std::ffi::CStr) -> Option<pg_sys::Oid> {
    // SAFETY: look-ups in the system caches by NUL-terminated names.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(c"idem".as_ptr(), true);
        if schema == pg_sys::InvalidOid {
            return None;
        }
        pg_sys::get_relname_relid(name.as_ptr(), schema)
    };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// The bytes of a value as a reader gets it: not compressed, and without its header.
///
/// # Safety
/// The value is of a type of variable length, and not NULL.
pub unsafe fn size_of(value: pg_sys::Datum) -> usize {
    // SAFETY: as above. The size of a value that is stored out of line stands in its pointer.
    unsafe { pg_sys::toast_raw_datum_size(value) }.saturating_sub(pg_sys::VARHDRSZ)
}

/// The start of the current transaction, microseconds since 2000: what `now()` answers.
pub fn transaction_start() -> pg_sys::TimestampTz {
    // SAFETY: reads a variable of the transaction.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

/// The clock, microseconds since 2000: what `clock_timestamp()` answers.
pub fn clock() -> pg_sys::TimestampTz {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// Answers a set-returning call with these rows, of the function's own result type.
pub fn answer_rows<const N: usize>(
    fcinfo: pg_sys::FunctionCallInfo,
    rows: impl Iterator<Item = [Option<pg_sys::Datum>; N]>,
) {
    // SAFETY: InitMaterializedSRF raises unless the caller takes a set; it leaves a tuplestore and
    // a row type with as many columns as the SQL of the function declares, which is N.
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
