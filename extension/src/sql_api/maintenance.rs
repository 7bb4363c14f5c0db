//! The functions that the SQL of the extension calls for maintenance, relays and health
//! (sql/internal/functions.sql).

use super::Report;
use crate::errors::given;
use crate::ring::{self, monotonic_us};
use crate::settings;
use crate::shared::{preloaded, this_database};
use crate::stats;
use pgrx::datum::Interval;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;
use std::sync::atomic::Ordering;

#[pg_extern(sql = false)]
fn ran() -> Report<Interval> {
    Ok(Interval::from_micros(ring::ran()?))
}

#[pg_extern(sql = false)]
fn monotonic() -> Interval {
    Interval::from_micros(monotonic_us())
}

#[pg_extern(sql = false)]
fn fence(step: Option<&str>, wait: Option<bool>) -> Report<bool> {
    ring::pass_fence(given(step, "step")?, given(wait, "wait")?)
}

#[pg_extern(sql = false)]
fn invalidate(relation: Option<pg_sys::Oid>) -> Report<()> {
    ring::invalidate(given(relation, "relation")?);
    Ok(())
}

#[pg_extern(sql = false)]
fn check_version_for_sql() -> Report<()> {
    Ok(ring::check_version()?)
}

// The result is an i64, because xid8 and int8 are the same 64 bits to the function manager.
#[pg_extern(sql = false)]
fn next_xid() -> i64 {
    // SAFETY: reads shared memory under its lock.
    unsafe { pg_sys::ReadNextFullTransactionId() }.value as i64
}

#[pg_extern(sql = false)]
fn counters() -> TableIterator<'static, (name!(name, &'static str), name!(value, i64))> {
    TableIterator::new(stats::counters())
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn worker_state() -> TableIterator<
    'static,
    (
        name!(preloaded, bool),
        name!(since_pass, Option<Interval>),
        name!(naptime_ms, i32),
    ),
> {
    let last_pass =
        this_database().map_or(0, |database| database.last_pass.load(Ordering::Relaxed));
    let since_pass = (last_pass != 0).then(|| Interval::from_micros(monotonic_us() - last_pass));
    TableIterator::once((preloaded(), since_pass, settings::NAPTIME_MS.get()))
}
