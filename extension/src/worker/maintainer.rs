//! The maintainer: a process that runs the due maintenance steps of one database and then ends.

use super::end_on_sigterm;
use crate::pg::sleep_ms;
use crate::ring::{check_version, monotonic_us};
use crate::settings::naptime;
use crate::shared::{self, this_database};
use pgrx::bgworkers::{BackgroundWorker, SignalWakeFlags};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a maintainer waits at fences after its last step. Most transactions with claims are
/// shorter. When one is longer, the next maintainer continues the wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// The interval, in milliseconds, at which a maintainer checks the fences that it waits at.
const FENCE_MS: i64 = 50;

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idem_maintainer_main(database: pg_sys::Datum) {
    end_on_sigterm();
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    let database = pg_sys::Oid::from(database.value() as u32);
    BackgroundWorker::connect_worker_to_spi_by_oid(Some(database), None);
    // Override settings of the database that would change what a step sees, whether it can write,
    // and how long it may take.
    for (name, value) in [
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_read_only", c"off"),
        (c"search_path", c"pg_catalog"),
        // The commit of a step does not wait for a standby, as in idem_maintain.
        (c"synchronous_commit", c"local"),
        (c"role", c"none"),
        (c"statement_timeout", c"0"),
        (c"lock_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"idle_session_timeout", c"0"),
        (c"transaction_timeout", c"0"),
    ] {
        // SAFETY: the names and values are NUL-terminated. Older servers do not have all settings.
        unsafe {
            if pg_sys::GetConfigOption(name.as_ptr(), true, false).is_null() {
                continue;
            }
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
    let started = Instant::now();
    let mut last_step = None;
    loop {
        match pass() {
            Pass::NotInstalled => {
                if let Some(known) = shared::of(database) {
                    known.last_pass.store(0, Ordering::Relaxed);
                }
                return;
            }
            // Other databases wait for their turn. The launcher starts the next
            // maintainer at once if no other database waits.
            Pass::Done if started.elapsed() >= naptime().max(PATIENCE) => return,
            Pass::Done => last_step = Some(Instant::now()),
            Pass::Nothing => {
                let is_patient = last_step.is_some_and(|at: Instant| at.elapsed() < PATIENCE);
                if !is_patient || !waits_at_fence() {
                    return;
                }
                sleep_ms(FENCE_MS);
            }
        }
    }
}

enum Pass {
    /// The extension is not installed, or its version is not supported by this library.
    NotInstalled,
    /// At least one step changed something.
    Done,
    Nothing,
}

fn waits_at_fence() -> bool {
    transaction(|| Spi::get_one("SELECT idem.waits_at_fence()")).unwrap_or_default()
}

/// Runs every step once, each in its own transaction. `idem.maintain_step` stores the error of a
/// step and does not raise it, so this process continues.
fn pass() -> Pass {
    if !transaction(|| Ok(Some(version_is_served()))).unwrap_or_default() {
        return Pass::NotInstalled;
    }
    let Some(steps) =
        transaction(|| Spi::get_one::<Vec<String>>("SELECT idem.maintenance_steps()"))
    else {
        return Pass::NotInstalled;
    };
    let mut pass = Pass::Nothing;
    for step in steps {
        let run = || {
            Spi::get_one_with_args::<bool>("SELECT idem.maintain_step($1)", &[step.as_str().into()])
        };
        match transaction(run) {
            None => return Pass::NotInstalled,
            Some(true) => pass = Pass::Done,
            Some(false) => (),
        }
    }
    if let Some(database) = this_database() {
        database.last_pass.store(monotonic_us(), Ordering::Relaxed);
    }
    pass
}

/// Returns whether the library supports the installed version. If it does not, logs a warning once.
fn version_is_served() -> bool {
    let refusal = check_version().err();
    let known = this_database().is_some_and(|database| {
        database
            .version_warned
            .swap(refusal.is_some(), Ordering::Relaxed)
    });
    let Some(refusal) = refusal else {
        return true;
    };
    if !known {
        ErrorReport::from(refusal).report(PgLogLevel::WARNING);
    }
    false
}

/// Runs one transaction. Returns `None` if the extension does not exist or is being dropped. It
/// checks the extension and not the schema, because a schema named idem can exist without the
/// extension.
fn transaction<T: Default>(
    work: impl FnOnce() -> spi::Result<Option<T>> + UnwindSafe + RefUnwindSafe,
) -> Option<T> {
    report_activity(pg_sys::BackendState::STATE_RUNNING, c"idem maintenance");
    let result = BackgroundWorker::transaction(|| {
        if !hold_extension() {
            return None;
        }
        match work() {
            Ok(result) => Some(result.unwrap_or_default()),
            Err(e) => pgrx::error!("idem maintenance: {e}"),
        }
    });
    // SAFETY: the process is outside a transaction. Without this report, the statistics, and
    // therefore autovacuum, would miss the changes of the transaction.
    unsafe { pg_sys::pgstat_report_stat(true) };
    report_activity(pg_sys::BackendState::STATE_IDLE, c"");
    result
}

/// Locks the extension until the transaction ends. DROP EXTENSION locks the extension before it
/// locks tables, so it waits for this lock. If DROP EXTENSION waited for the tables of a step
/// instead, the two could deadlock.
///
/// Returns false if the extension does not exist, or if a DROP holds or awaits its lock.
fn hold_extension() -> bool {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: these are look-ups by a NUL-terminated name, and a lock that the transaction
    // releases.
    unsafe {
        let extension = pg_sys::get_extension_oid(c"idem".as_ptr(), true);
        extension != pg_sys::InvalidOid
            && pg_sys::ConditionalLockDatabaseObject(
                pg_sys::ExtensionRelationId,
                extension,
                0,
                lock,
            )
            // The extension may have been dropped before the lock was held.
            && pg_sys::get_extension_oid(c"idem".as_ptr(), true) == extension
    }
}

fn report_activity(state: pg_sys::BackendState::Type, what: &std::ffi::CStr) {
    // SAFETY: the text is copied.
    unsafe { pg_sys::pgstat_report_activity(state, what.as_ptr()) };
}
