//! The settings, with their units and their purpose.

use crate::errors::{Error, Result};
use crate::shared::is_preloading;
use idem_core::limits::{LARGEST_PAYLOAD_BYTES, TRACEPARENT_BYTES};
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use std::ffi::CString;
use std::time::Duration;

/// How a lone claim is handled (see `claim::lone`).
#[derive(Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum LoneClaims {
    #[name = c"refuse"]
    Refuse,
    #[name = c"warn"]
    Warn,
    #[name = c"allow"]
    Allow,
}

pub static LONE_CLAIMS: GucSetting<LoneClaims> = GucSetting::<LoneClaims>::new(LoneClaims::Refuse);
pub static TRACEPARENT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
pub static WAIT_FOR_FLUSH: GucSetting<bool> = GucSetting::<bool>::new(false);
pub static FENCE_WAIT_MS: GucSetting<i32> = GucSetting::<i32>::new(60_000);
pub static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
pub static MAX_DEAD_LETTERS: GucSetting<i32> = GucSetting::<i32>::new(100_000);
pub static MAX_PAYLOAD_KB: GucSetting<i32> = GucSetting::<i32>::new(64 * 1024);
pub static FILTER_MEMORY_MB: GucSetting<i32> = GucSetting::<i32>::new(64);
pub static NAPTIME_MS: GucSetting<i32> = GucSetting::<i32>::new(10_000);

/// Returns the time between two passes of the worker.
pub fn naptime() -> Duration {
    Duration::from_millis(NAPTIME_MS.get() as u64)
}

/// Returns the trace context of the transaction. A value that is too long is ignored, because it
/// could not be recorded with an effect.
pub fn traceparent() -> Option<String> {
    let inherited = TRACEPARENT.get()?;
    let inherited = inherited.to_str().ok()?;
    (1..=TRACEPARENT_BYTES)
        .contains(&inherited.len())
        .then(|| inherited.to_owned())
}

/// Fails with 54000 if a payload is larger than `idem.max_payload`.
pub fn check_payload(bytes: usize) -> Result<()> {
    let most = MAX_PAYLOAD_KB.get() as usize * 1024;
    if bytes > most {
        return Err(Error::PayloadTooLarge { bytes, most });
    }
    Ok(())
}

/// Defines the settings and reserves their prefix. Called once, from `_PG_init`.
pub fn define() {
    GucRegistry::define_enum_guc(
        c"idem.lone_claims",
        c"How a claim whose transaction does nothing else is handled: refuse, warn or allow.",
        c"Such a claim commits before the work is done, and the message is lost when the work \
          fails.",
        &LONE_CLAIMS,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"idem.traceparent",
        c"W3C trace context that is recorded with effects without a traceparent in their headers.",
        c"Set it with SET LOCAL, so that the trace continues at the consumer of an effect.",
        &TRACEPARENT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"idem.wait_for_flush",
        c"Whether a duplicate waits until the claim, the received message or the dead letter that \
          it relies on is on disk.",
        c"A commit with synchronous_commit = off is visible before it is on disk, and a crash \
          loses it. A duplicate that was acknowledged in between would be lost with it.",
        &WAIT_FOR_FLUSH,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idem.fence_wait",
        c"How long CALL idem_maintain() waits for running transactions before a rotation step.",
        c"In milliseconds. A step waits for transactions that held a lock of claims when the step \
          was first checked. If they take longer, the next CALL or the worker continues the wait.",
        &FENCE_WAIT_MS,
        0,
        3_600_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_string_guc(
        c"idem.databases",
        c"Databases that get a worker, separated by commas; empty means all that have the \
          extension.",
        c"Names as in pg_database. Useful when a server has many databases and few with idem.",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idem.naptime",
        c"Pause between two passes of the worker over a database.",
        c"In milliseconds. A rotation is late by at most this time. Each pass starts a process, so \
          that no permanent connection blocks DROP DATABASE.",
        &NAPTIME_MS,
        100,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idem.max_dead_letters",
        c"How many dead letters of broker messages a destination keeps.",
        c"Above this number idem_reject and idem_bury fail, and messages stay at their broker: \
          nothing is dropped.",
        &MAX_DEAD_LETTERS,
        1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idem.max_payload",
        c"The largest payload of a message, an effect, a dead letter or a response, in kB.",
        c"A function that stores a larger payload fails. Messages that are stored already are \
          returned when the value is reduced.",
        &MAX_PAYLOAD_KB,
        1,
        (LARGEST_PAYLOAD_BYTES / 1024) as i32,
        // A role must not store what its consumers cannot read.
        GucContext::Sighup,
        GucFlags::UNIT_KB,
    );
    // The memory is reserved when the server starts.
    if is_preloading() {
        GucRegistry::define_int_guc(
            c"idem.filter_memory",
            c"The shared memory for the filters of slices, in MB; 0 disables them.",
            c"A retained claim takes two to four bytes. Each claim reads every slice without one.",
            &FILTER_MEMORY_MB,
            0,
            1 << 20,
            GucContext::Postmaster,
            GucFlags::UNIT_MB,
        );
    }
    crate::pause::define();
    // SAFETY: all settings of the prefix are defined.
    unsafe { pgrx::pg_sys::MarkGUCPrefixReserved(c"idem".as_ptr()) };
}
