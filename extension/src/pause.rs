//! Pause points: named places in the code at which a backend waits until a test releases it.
//!
//! Pause points exist only in a build with the feature `pause-points`; in any other build
//! [`pause_point`] is empty. A test takes the lock of a point with
//! `pg_advisory_lock(hashtext('idem.pause'), hashtext('<name>'))`, and a session opts in with `SET
//! idem.pause_at = '<name>, <name>'`. When that session reaches the point, it sets its
//! `application_name` to `paused at <name>` and waits until the test releases the lock. A point
//! does not stop the session while its lock is free.
//!
//! The backend polls the lock instead of waiting for it, so `lock_timeout`, the deadlock detector
//! and other lock waiters do not see the pause. A point must not be placed where the backend holds
//! an LWLock.
//!
//! The same builds have `idem.leave_out`: the names of rules that sessions leave out, so that a
//! test shows that its checker detects a protocol without the rule.

#[cfg(not(feature = "pause-points"))]
pub use absent::{define, is_left_out, pause_point};
#[cfg(feature = "pause-points")]
pub use present::{define, is_left_out, pause_point};

#[cfg(not(feature = "pause-points"))]
mod absent {
    /// Defines no setting.
    pub fn define() {}

    /// Does nothing.
    #[inline(always)]
    pub fn pause_point(_name: &str) {}

    /// Returns false: no rule is left out.
    #[inline(always)]
    pub fn is_left_out(_rule: &str) -> bool {
        false
    }
}

#[cfg(feature = "pause-points")]
mod present {
    use crate::pg::sleep_ms;
    use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
    use pgrx::pg_sys;
    use pgrx::prelude::*;
    use std::ffi::{CStr, CString};

    static PAUSE_AT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
    static LEAVE_OUT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

    /// The interval, in milliseconds, at which a paused backend tries the lock of its point.
    const POLL_MS: i64 = 1;

    /// `cargo xtask package` rejects a library that exports this symbol.
    #[unsafe(no_mangle)]
    pub static IDEM_HAS_PAUSE_POINTS: u8 = 1;

    /// Defines `idem.pause_at` and `idem.leave_out`.
    pub fn define() {
        GucRegistry::define_string_guc(
            c"idem.pause_at",
            c"Names of the pause points at which this session waits, separated by commas.",
            c"Only in builds for tests.",
            &PAUSE_AT,
            GucContext::Userset,
            GucFlags::default(),
        );
        GucRegistry::define_string_guc(
            c"idem.leave_out",
            c"Names of the rules that this session leaves out, separated by commas.",
            c"Only in builds for tests.",
            &LEAVE_OUT,
            GucContext::Suset,
            GucFlags::default(),
        );
    }

    /// Returns whether this session leaves a rule out.
    pub fn is_left_out(rule: &str) -> bool {
        contains(&LEAVE_OUT, rule)
    }

    /// Waits while the session has opted in to this point and another session holds its advisory
    /// lock.
    pub fn pause_point(name: &str) {
        if !is_armed(name) || passes(name) {
            return;
        }
        // SAFETY: application_name is a setting of every backend; its value outlives the
        // transaction.
        let before = unsafe { CStr::from_ptr(pg_sys::application_name).to_owned() };
        if let Ok(shown) = CString::new(format!("paused at {name}")) {
            show(&shown);
        }
        while !passes(name) {
            sleep_ms(POLL_MS);
        }
        show(&before);
    }

    /// Makes `pause_point` available in SQL. A test declares it as `LANGUAGE c AS '$libdir/idem',
    /// 'idem_pause_point_wrapper'`.
    #[pg_extern(sql = false)]
    fn idem_pause_point(name: &str) {
        pause_point(name);
    }

    fn is_armed(name: &str) -> bool {
        contains(&PAUSE_AT, name)
    }

    /// Returns whether the list of names in the setting contains a name.
    fn contains(setting: &GucSetting<Option<CString>>, name: &str) -> bool {
        setting.get().is_some_and(|names| {
            names
                .to_string_lossy()
                .split(',')
                .any(|listed| listed.trim() == name)
        })
    }

    fn show(name: &CStr) {
        // SAFETY: the name is copied into shared memory.
        unsafe { pg_sys::pgstat_report_appname(name.as_ptr()) };
    }

    /// Returns whether no other session holds the lock of the point.
    fn passes(name: &str) -> bool {
        // SAFETY: an all-zero LOCKTAG is filled as SET_LOCKTAG_ADVISORY does; the lock is released
        // at once.
        unsafe {
            let mut tag: pg_sys::LOCKTAG = std::mem::zeroed();
            tag.locktag_field1 = pg_sys::MyDatabaseId.to_u32();
            tag.locktag_field2 = hash(b"idem.pause");
            tag.locktag_field3 = hash(name.as_bytes());
            tag.locktag_field4 = 2; // the class of pg_advisory_lock(int, int)
            tag.locktag_type = pg_sys::LockTagType::LOCKTAG_ADVISORY as u8;
            tag.locktag_lockmethodid = pg_sys::USER_LOCKMETHOD as u8;
            let mode = pg_sys::ShareLock as pg_sys::LOCKMODE;
            let taken = pg_sys::LockAcquire(&tag, mode, false, true);
            if taken == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
                return false;
            }
            pg_sys::LockRelease(&tag, mode, false);
            true
        }
    }

    /// Returns the value of `hashtext` in SQL.
    fn hash(text: &[u8]) -> u32 {
        unsafe extern "C-unwind" {
            // common/hashfn.h, since PostgreSQL 13; pgrx has no binding for it.
            fn hash_bytes(key: *const u8, length: i32) -> u32;
        }
        // SAFETY: the pointer and the length are those of a slice.
        unsafe { hash_bytes(text.as_ptr(), text.len() as i32) }
    }
}
