//! PostgreSQL functions for which pgrx has no binding, declared as in PostgreSQL's headers.

use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

unsafe extern "C-unwind" {
    // commands/sequence.h, since PostgreSQL 10
    fn nextval_internal(relid: pg_sys::Oid, check_permissions: bool) -> i64;
    // access/heaptoast.h, since PostgreSQL 13
    fn toast_flatten_tuple(tuple: pg_sys::HeapTuple, desc: pg_sys::TupleDesc) -> pg_sys::HeapTuple;
}

/// Returns the next value of a sequence, without a check of privileges.
pub fn next_value(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: nextval_internal raises an error unless the OID is a sequence; the boundary turns
    // PostgreSQL errors into Rust panics.
    unsafe { pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// Returns a copy of the tuple with all values fetched from TOAST.
///
/// # Safety
/// The tuple has the columns of the descriptor, and its table is still locked.
pub unsafe fn flatten(tuple: pg_sys::HeapTuple, desc: pg_sys::TupleDesc) -> pg_sys::HeapTuple {
    // SAFETY: by the contract of this function; the boundary turns PostgreSQL errors into Rust
    // panics.
    unsafe { pg_guard_ffi_boundary(|| toast_flatten_tuple(tuple, desc)) }
}
