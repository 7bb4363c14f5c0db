//! The functions that forbid and allow COMMIT (sql/api/commit.sql).

use super::Report;
use crate::commit_guard;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn idem_forbid_commit() -> Report<()> {
    Ok(commit_guard::forbid()?)
}

#[pg_extern(sql = false)]
fn idem_allow_commit() -> Report<()> {
    Ok(commit_guard::allow()?)
}
