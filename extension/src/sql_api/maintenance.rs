//! The functions that the SQL of the extension calls for maintenance, relays and health
//! (sql/internal/functions.sql).

use super::Report;
use crate::errors::{Error, given};
use crate::filters::{self, FilterState};
use crate::outbox::floor;
use crate::pg::{self, Locker};
use crate::ring::{self, monotonic_us};
use crate::settings;
use crate::shared::{self, Database, this_database};
use crate::stats;
use pgrx::datum::Interval;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[pg_extern(sql = false)]
fn ran() -> Report<Interval> {
    Ok(Interval::from_micros(ring::ran()?))
}

#[pg_extern(sql = false)]
fn monotonic() -> Interval {
    Interval::from_micros(monotonic_us())
}

#[pg_extern(sql = false)]
fn lockers(relation: Option<pg_sys::Oid>) -> Report<Vec<String>> {
    let relation = given(relation, "relation")?;
    if relation == ring::ring_table()? {
        ring::not_in_the_transaction_that_published()?;
    }
    let lockers = ring::lockers(relation)?;
    Ok(lockers.iter().map(Locker::to_string).collect())
}

#[pg_extern(sql = false)]
fn still_running(
    lockers: Option<Vec<Option<String>>>,
    wait_ms: Option<i32>,
) -> Report<Vec<String>> {
    let listed = given(lockers, "lockers")?.into_iter().flatten();
    let listed = listed.map(|locker| {
        let parsed = locker.parse();
        parsed.map_err(|_| Error::Corrupt("idem.fence contains an unreadable transaction"))
    });
    let listed = listed.collect::<Result<_, _>>()?;
    let wait = Duration::from_millis(given(wait_ms, "wait_ms")?.max(0) as u64);
    let remain = pg::still_running(listed, wait);
    Ok(remain.iter().map(Locker::to_string).collect())
}

#[pg_extern(sql = false)]
fn server_run() -> String {
    // SAFETY: MyDatabaseId is set once, when the backend connects.
    let database = unsafe { pg_sys::MyDatabaseId };
    format!(
        "{:x}.{database}",
        shared::server_run(),
        database = database.to_u32()
    )
}

#[pg_extern(sql = false)]
fn note_floor(from: Option<i64>, to: Option<i64>, ceiling: Option<i64>) -> Report<bool> {
    floor::note([from, to, ceiling].into_iter().flatten().fold(0, i64::max))?;
    Ok(true)
}

#[pg_extern(sql = false)]
fn highest_floor() -> Report<i64> {
    Ok(floor::highest()?)
}

#[pg_extern(sql = false)]
fn fail_behind(of: Option<&str>) -> Report<()> {
    let of = given(of, "of")?.to_owned();
    Err(Error::SequenceBehind { of }.into())
}

#[pg_extern(sql = false)]
fn build_filters(ring: Option<i32>) -> Report<bool> {
    // A filter outlives a rollback, so it must not describe uncommitted tables.
    ring::not_in_the_transaction_that_published()?;
    let ring = usize::try_from(given(ring, "ring")?).unwrap_or(usize::MAX);
    Ok(filters::build_next(ring)?)
}

#[pg_extern(sql = false)]
fn prepare_opened_filter(ring: Option<i32>) -> Report<bool> {
    let ring = usize::try_from(given(ring, "ring")?).unwrap_or(usize::MAX);
    Ok(filters::prepare_opened(ring)?)
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn filter_states() -> Result<
    TableIterator<
        'static,
        (
            name!(ring, i32),
            name!(slice, i32),
            name!(status, &'static str),
            name!(reason, Option<&'static str>),
            name!(is_being_built, bool),
            name!(bytes, Option<i64>),
            name!(bits_per_claim, Option<i32>),
            name!(expected_false_positives, Option<f64>),
            name!(observed_false_positives, Option<f64>),
            name!(look_ups, Option<i64>),
        ),
    >,
    ErrorReport,
> {
    let row = |state: FilterState| {
        let filter = state.filter.as_ref();
        let looked_up = filter.filter(|filter| filter.look_ups > 0);
        (
            state.ring as i32,
            i32::from(state.slice),
            state.status,
            state.reason,
            state.is_being_built,
            filter.map(|filter| filter.bytes as i64),
            filter.map(|filter| filter.bits_per_claim as i32),
            filter.map(|filter| filter.expected_false_positives),
            looked_up.map(|filter| filter.false_positives as f64 / filter.look_ups as f64),
            filter.map(|filter| filter.look_ups as i64),
        )
    };
    Ok(TableIterator::new(
        filters::filter_states()?.into_iter().map(row),
    ))
}

#[pg_extern(sql = false)]
fn filter_memory() -> TableIterator<'static, (name!(database, pg_sys::Oid), name!(bytes, i64))> {
    let databases = shared::databases().map(|(oid, _)| oid);
    TableIterator::new(databases.map(|oid| (oid, filters::bytes_of(oid) as i64)))
}

#[pg_extern(sql = false)]
fn invalidate_filter(slice: Option<pg_sys::Oid>) -> bool {
    if let Some(slice) = slice {
        filters::invalidate(slice);
    }
    true
}

#[pg_extern(sql = false)]
fn invalidate(relation: Option<pg_sys::Oid>) -> Report<()> {
    ring::invalidate(given(relation, "relation")?);
    Ok(())
}

#[pg_extern(sql = false)]
fn record_load(loaded: Option<pg_sys::Oid>) -> Report<()> {
    Ok(ring::record_load(given(loaded, "loaded")?)?)
}

// The argument is an i64, because xid8 and int8 are the same 64 bits to the function manager.
#[pg_extern(sql = false)]
fn is_aborted(tx: Option<i64>) -> Report<bool> {
    let status = pg::transaction_status(given(tx, "tx")? as u64);
    Ok(status == pg::Status::Aborted)
}

#[pg_extern(sql = false)]
fn check_preloaded() -> Report<()> {
    Ok(shared::ensure_preloaded()?)
}

#[pg_extern(sql = false)]
fn is_preloaded() -> bool {
    shared::is_preloaded()
}

#[pg_extern(sql = false)]
fn check_usable() -> Report<()> {
    ring::check_version()?;
    ring::ensure_restored()?;
    Ok(())
}

#[pg_extern(sql = false)]
fn is_restoring() -> Report<bool> {
    Ok(ring::Installation::read()?.restoring)
}

#[pg_extern(sql = false)]
fn check_transaction(call: Option<&str>) -> Report<()> {
    shared::ensure_preloaded()?;
    let call = CString::new(given(call, "call")?).unwrap_or_default();
    Ok(pg::ensure_newest_state(&call)?)
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
fn worker_state()
-> TableIterator<'static, (name!(since_pass, Option<Interval>), name!(naptime_ms, i32))> {
    let since_pass = this_database().and_then(since_pass);
    TableIterator::once((since_pass, settings::NAPTIME_MS.get()))
}

#[pg_extern(sql = false)]
fn worker_passes()
-> TableIterator<'static, (name!(database, pg_sys::Oid), name!(since_pass, Interval))> {
    let passes = shared::databases().map(|(oid, database)| Some((oid, since_pass(database)?)));
    TableIterator::new(passes.flatten())
}

fn since_pass(database: &Database) -> Option<Interval> {
    let last_pass = database.last_pass.load(Ordering::Relaxed);
    (last_pass != 0).then(|| Interval::from_micros(monotonic_us() - last_pass))
}
