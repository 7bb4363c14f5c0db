//! The launcher: one process, no database; starts a maintainer for each database in turn.

use super::end_on_sigterm;
use crate::pg::wait_a_moment;
use crate::settings;
use crate::shared;
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, DynamicBackgroundWorker,
    SignalWakeFlags,
};
use pgrx::prelude::*;
use pgrx::{PgMemoryContexts, pg_sys};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// After an error the launcher comes back after this, not at once.
const RESTART: Duration = Duration::from_secs(5);
/// How often a database is asked whether it has the extension by now, unless a backend of it has
/// used idem already.
const DISCOVERY: Duration = Duration::from_secs(60);
/// Maintainers at work at once.
const AT_WORK: usize = 2;
/// A maintainer that is there for longer waits at a fence: it does no work, and the databases
/// behind it shall not wait too.
const A_PASS: Duration = Duration::from_secs(1);
/// How often it looks whether a maintainer has ended.
const WATCH_MS: i64 = 100;

/// Registers the launcher; from `_PG_init` while preloading.
pub fn register() {
    // pg_upgrade looks at files while the server runs: nobody may truncate one then.
    // SAFETY: set by the postmaster's command line before libraries are loaded.
    if unsafe { pg_sys::IsBinaryUpgrade } {
        return;
    }
    BackgroundWorkerBuilder::new("idem launcher")
        .set_type("idem launcher")
        .set_library("idem")
        .set_function("idem_launcher_main")
        .enable_spi_access()
        // Not on a standby; the postmaster starts it there after promotion.
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(RESTART))
        .load();
}

#[derive(Default)]
struct Site {
    last_start: Option<Instant>,
    running: Option<DynamicBackgroundWorker>,
}

impl Site {
    /// When the next maintainer is due. Asked anew each time: a database becomes known while its
    /// maintainer runs, or when somebody creates the extension.
    fn next_pass(&self, database: pg_sys::Oid) -> Option<Instant> {
        let naptime = Duration::from_millis(settings::NAPTIME_MS.get() as u64);
        let pause = if shared::is_known(database) {
            naptime
        } else {
            naptime.max(DISCOVERY)
        };
        Some(self.last_start? + pause)
    }

    fn is_at_work(&self) -> bool {
        self.running.is_some()
            && self
                .last_start
                .is_some_and(|start| start.elapsed() < A_PASS)
    }
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idem_launcher_main(_arg: pg_sys::Datum) {
    end_on_sigterm();
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    BackgroundWorker::connect_worker_to_spi(None, None);
    let mut sites: HashMap<pg_sys::Oid, Site> = HashMap::new();
    // The handles of maintainers are never freed one by one: they go together, when none is in use.
    let mut handles = PgMemoryContexts::new("idem maintainers");
    loop {
        if BackgroundWorker::sighup_received() {
            // SAFETY: outside a transaction, in a process that has loaded its settings.
            unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
        }
        let databases = databases();
        sites.retain(|oid, _| databases.contains(oid));
        for database in databases {
            sites.entry(database).or_default();
        }
        for site in sites.values_mut() {
            if site
                .running
                .as_ref()
                .is_some_and(|worker| !is_running(worker))
            {
                site.running = None;
            }
        }
        let mut running = sites.values().filter(|site| site.running.is_some()).count();
        if running == 0 {
            // SAFETY: no handle is left that points into it.
            unsafe { handles.reset() };
        }
        let mut at_work = sites.values().filter(|site| site.is_at_work()).count();
        let now = Instant::now();
        for (&database, site) in &mut sites {
            if at_work >= AT_WORK
                || running >= most_at_once()
                || site.running.is_some()
                || site.next_pass(database).is_some_and(|next| next > now)
            {
                continue;
            }
            // SAFETY: the context lives as long as this function.
            site.running = unsafe { handles.switch_to(|_| start_maintainer(database)) };
            running += usize::from(site.running.is_some());
            at_work += usize::from(site.running.is_some());
            site.last_start = Some(now);
        }
        let nap = if running > 0 {
            WATCH_MS
        } else {
            let next = sites
                .iter()
                .filter_map(|(&database, site)| site.next_pass(database))
                .min();
            next.map_or(1_000, |next| {
                next.saturating_duration_since(Instant::now()).as_millis() as i64
            })
            .clamp(1, 1_000)
        };
        wait_a_moment(nap);
    }
}

/// Those that wait included: they share max_worker_processes with everybody.
fn most_at_once() -> usize {
    // SAFETY: set once, when the server starts.
    let everybody = unsafe { pg_sys::max_worker_processes };
    (everybody as usize / 2).max(AT_WORK)
}

fn is_running(worker: &DynamicBackgroundWorker) -> bool {
    use pgrx::bgworkers::BackgroundWorkerStatus::*;
    matches!(worker.pid(), Ok(_) | Err(NotYetStarted))
}

fn start_maintainer(database: pg_sys::Oid) -> Option<DynamicBackgroundWorker> {
    // SAFETY: this process's id.
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

/// The databases to look after: those that take connections and that `idem.databases` allows. By a
/// scan of the shared catalog, because a process without a database has no SQL. What is shared
/// about dropped databases is forgotten.
fn databases() -> Vec<pg_sys::Oid> {
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
    // Known before the scan: one that is created meanwhile is not taken for dropped.
    let mut dropped = shared::known_databases();
    let mut found = Vec::new();
    // SAFETY: a transaction of its own around a scan of a shared catalog, as the autovacuum
    // launcher does it.
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
    dropped.into_iter().for_each(shared::forget);
    found
}
