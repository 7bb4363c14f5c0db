//! The functions that forbid and allow COMMIT (sql/api/commit.sql).

use super::Report;
use crate::commit_guard;
use pgrx::pg_sys;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn idem_forbid_commit(fcinfo: pg_sys::FunctionCallInfo) -> Report<()> {
    // SAFETY: fcinfo is that of the running function.
    let function = unsafe { (*(*fcinfo).flinfo).fn_oid };
    Ok(commit_guard::forbid(function)?)
}

#[pg_extern(sql = false)]
fn idem_allow_commit() -> Report<()> {
    Ok(commit_guard::allow()?)
}
