//! The launcher: one process that is not connected to a database. It starts a maintainer for one
//! database after another.

use super::end_on_sigterm;
use crate::filters;
use crate::pg::{excludes_sessions, sleep_ms};
use crate::settings::{self, naptime};
use crate::shared;
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, DynamicBackgroundWorker,
    SignalWakeFlags,
};
use pgrx::prelude::*;
use pgrx::{PgMemoryContexts, pg_sys};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The delay after which the launcher is restarted after an error.
const RESTART: Duration = Duration::from_secs(5);
/// The least time between two passes over a database in which no backend has used idem yet. A pass
/// finds out whether the extension has been created.
const DISCOVERY: Duration = Duration::from_secs(60);
/// The least number of maintainers that may run at the same time.
const LEAST_AT_ONCE: usize = 2;
/// The interval, in milliseconds, at which the launcher checks whether a maintainer has ended.
const WATCH_MS: i64 = 100;

/// Registers the launcher. Called from `_PG_init` while libraries are preloaded.
pub fn register() {
    // pg_upgrade reads files while the server runs, so no worker may truncate a file.
    // SAFETY: the postmaster sets IsBinaryUpgrade from its command line before it loads libraries.
    if unsafe { pg_sys::IsBinaryUpgrade } {
        return;
    }
    BackgroundWorkerBuilder::new("idem launcher")
        .set_type("idem launcher")
        .set_library("idem")
        .set_function("idem_launcher_main")
        .enable_spi_access()
        // The launcher does not run on a standby. The postmaster starts it after promotion.
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(RESTART))
        .load();
}

#[derive(Default)]
struct DatabaseState {
    last_start: Option<Instant>,
    running: Option<DynamicBackgroundWorker>,
}

impl DatabaseState {
    /// Returns the time at which the next maintainer is due. The time is computed at each use,
    /// because the interval becomes shorter when a backend or a maintainer first uses idem in the
    /// database.
    fn next_pass(&self, database: pg_sys::Oid) -> Option<Instant> {
        let pause = if shared::is_known(database) {
            naptime()
        } else {
            naptime().max(DISCOVERY)
        };
        Some(self.last_start? + pause)
    }

    /// Forgets the maintainer if it has ended.
    fn forget_ended(&mut self) {
        if self.running.as_ref().is_some_and(|run| !is_running(run)) {
            self.running = None;
        }
    }
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idem_launcher_main(_arg: pg_sys::Datum) {
    end_on_sigterm();
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    BackgroundWorker::connect_worker_to_spi(None, None);
    let mut databases: HashMap<pg_sys::Oid, DatabaseState> = HashMap::new();
    // The handles of maintainers are not freed individually, but together when no maintainer runs.
    let mut handles = PgMemoryContexts::new("idem maintainers");
    loop {
        if BackgroundWorker::sighup_received() {
            // SAFETY: the process is outside a transaction and has loaded its settings.
            unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
        }
        let served = served_databases();
        databases.retain(|oid, _| served.contains(oid));
        for oid in served {
            databases.entry(oid).or_default();
        }
        databases.values_mut().for_each(DatabaseState::forget_ended);
        end_in_commands_way(&mut databases);
        let running = databases
            .values()
            .filter(|database| database.running.is_some())
            .count();
        if running == 0 {
            // SAFETY: no handle points into the context.
            unsafe { handles.reset() };
        }
        let now = Instant::now();
        let mut due: Vec<_> = databases
            .iter_mut()
            .filter(|(oid, database)| {
                database.running.is_none()
                    && database.next_pass(**oid).is_none_or(|next| next <= now)
                    && !excludes_sessions_now(**oid)
            })
            .collect();
        // Begin with the database that has waited for the longest time, so that each gets its turn.
        due.sort_by_key(|(_, database)| database.last_start);
        for (&oid, database) in due.into_iter().take(most_at_once().saturating_sub(running)) {
            // SAFETY: the context lives as long as this function.
            database.running = unsafe { handles.switch_to(|_| start_maintainer(oid)) };
            database.last_start = Some(now);
        }
        let is_running = |database: &DatabaseState| database.running.is_some();
        let nap = if databases.values().any(is_running) {
            WATCH_MS
        } else {
            let next = databases
                .iter()
                .filter_map(|(&oid, database)| database.next_pass(oid))
                .min();
            next.map_or(1_000, |next| {
                next.saturating_duration_since(Instant::now()).as_millis() as i64
            })
            .clamp(1, 1_000)
        };
        sleep_ms(nap);
    }
}

/// Ends the maintainers that are in the way of DROP DATABASE and other commands. These wait for at
/// most 5 s until no session is connected, and a scan of a large slice can take longer.
fn end_in_commands_way(databases: &mut HashMap<pg_sys::Oid, DatabaseState>) {
    for (&oid, database) in databases {
        if database.running.is_some() && excludes_sessions_now(oid) {
            database
                .running
                .take()
                .map(DynamicBackgroundWorker::terminate);
        }
    }
}

fn excludes_sessions_now(database: pg_sys::Oid) -> bool {
    // SAFETY: the process is outside a transaction. A lock needs a transaction, which has no
    // snapshot, because the process is not connected to a database.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        let excludes = excludes_sessions(database);
        pg_sys::CommitTransactionCommand();
        excludes
    }
}

/// Returns the maximum number of maintainers: half of max_worker_processes, which all background
/// workers of the server share.
fn most_at_once() -> usize {
    // SAFETY: max_worker_processes is set once, when the server starts.
    let all_workers = unsafe { pg_sys::max_worker_processes };
    (all_workers as usize / 2).max(LEAST_AT_ONCE)
}

fn is_running(worker: &DynamicBackgroundWorker) -> bool {
    use pgrx::bgworkers::BackgroundWorkerStatus::*;
    matches!(worker.pid(), Ok(_) | Err(NotYetStarted))
}

fn start_maintainer(database: pg_sys::Oid) -> Option<DynamicBackgroundWorker> {
    // SAFETY: reads this process's id.
    let pid = unsafe { pg_sys::MyProcPid };
    BackgroundWorkerBuilder::new("idem maintainer")
        .set_type("idem maintainer")
        .set_library("idem")
        .set_function("idem_maintainer_main")
        .set_argument(database.into_datum())
        .set_notify_pid(pid)
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(None)
        .load_dynamic()
        .ok()
}

/// Returns the databases that accept connections and that `idem.databases` allows. Scans the shared
/// catalog, because a process without a database cannot run SQL. Frees the shared state of dropped
/// databases.
fn served_databases() -> Vec<pg_sys::Oid> {
    let allowed = settings::DATABASES.get();
    let allowed = allowed
        .as_ref()
        .and_then(|names| names.to_str().ok())
        .unwrap_or("");
    let allowed: Vec<&str> = allowed
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    // Read this list before the scan, so that a database that is created in between does not count
    // as dropped.
    let mut dropped: Vec<_> = shared::databases().map(|(oid, _)| oid).collect();
    let mut found = Vec::new();
    // SAFETY: the scan reads a shared catalog in a transaction of its own, as the autovacuum
    // launcher does.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        let rel = pg_sys::table_open(
            pg_sys::DatabaseRelationId,
            pg_sys::AccessShareLock as pg_sys::LOCKMODE,
        );
        let scan = pg_sys::systable_beginscan(
            rel,
            pg_sys::InvalidOid,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            let name = std::ffi::CStr::from_ptr(row.datname.data.as_ptr()).to_string_lossy();
            let wanted = if allowed.is_empty() {
                !row.datistemplate
            } else {
                allowed.contains(&name.as_ref())
            };
            dropped.retain(|&known| known != row.oid);
            if row.datallowconn && wanted {
                found.push(row.oid);
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        pg_sys::CommitTransactionCommand();
    }
    dropped.into_iter().for_each(forget);
    found
}

/// Frees the shared state of a dropped database.
fn forget(database: pg_sys::Oid) {
    if let Some(number) = shared::number_of(database) {
        filters::forget(number);
    }
    shared::forget(database);
}
