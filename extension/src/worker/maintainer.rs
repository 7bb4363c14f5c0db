//! The maintainer: one pass over one database.

use super::end_on_sigterm;
use crate::pg::wait_a_moment;
use crate::ring::fences_pending;
use crate::shared::this_database;
use pgrx::bgworkers::{BackgroundWorker, SignalWakeFlags};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::sync::atomic::Ordering;

/// How often a rotation that waits at its fence looks again.
const FENCE_MS: i64 = 50;

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idem_maintainer_main(database: pg_sys::Datum) {
    end_on_sigterm();
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    BackgroundWorker::connect_worker_to_spi_by_oid(Some(pg_sys::Oid::from(database.value() as u32)), None);
    // What the database sets for its users must not change how a step sees the others.
    for (name, value) in [
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_read_only", c"off"),
        (c"search_path", c"pg_catalog"),
        (c"synchronous_commit", c"on"),
    ] {
        // SAFETY: names and values are NUL-terminated and those of built-in settings.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
    loop {
        match step() {
            Step::NotInstalled => return,
            Step::Done => continue,
            Step::Nothing if fences_pending() => wait_a_moment(FENCE_MS),
            Step::Nothing => return,
        }
    }
}

enum Step {
    NotInstalled,
    Done,
    Nothing,
}

/// One step in one transaction. An error ends the process and is in the server log; the launcher starts the next pass
/// after `idem.naptime`.
fn step() -> Step {
    report_activity(pg_sys::BackendState::STATE_RUNNING, c"SELECT idem.maintain_step(false)");
    let step = BackgroundWorker::transaction(|| {
        // Asked each time: DROP EXTENSION may have come in between, and a schema of that name is no proof.
        // SAFETY: a look-up by a NUL-terminated name.
        if unsafe { pg_sys::get_extension_oid(c"idem".as_ptr(), true) } == pg_sys::InvalidOid {
            return Step::NotInstalled;
        }
        match Spi::get_one::<bool>("SELECT idem.maintain_step(false)") {
            Ok(Some(true)) => Step::Done,
            Ok(_) => Step::Nothing,
            Err(e) => pgrx::error!("idem.maintain_step: {e}"),
        }
    });
    // SAFETY: outside a transaction. Without it the statistics, and so autovacuum, would not learn of what was done.
    unsafe { pg_sys::pgstat_report_stat(true) };
    report_activity(pg_sys::BackendState::STATE_IDLE, c"");
    if !matches!(step, Step::NotInstalled)
        && let Some(database) = this_database()
    {
        // SAFETY: reads the clock.
        database
            .last_pass
            .store(unsafe { pg_sys::GetCurrentTimestamp() }, Ordering::Relaxed);
    }
    step
}

fn report_activity(state: pg_sys::BackendState::Type, what: &std::ffi::CStr) {
    // SAFETY: the text is copied.
    unsafe { pg_sys::pgstat_report_activity(state, what.as_ptr()) };
}
