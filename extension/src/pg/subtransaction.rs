//! A subtransaction: inserted rows can be rolled back while the transaction goes on.

use pgrx::PgTryBuilder;
use pgrx::pg_sys;
use std::panic::AssertUnwindSafe;

/// Returns the number of subtransactions that PostgreSQL caches for this session: those of the open
/// transaction that have written and were not rolled back.
pub fn cached_subtransactions() -> u8 {
    // SAFETY: `MyProc` is the entry of this process in shared memory. Only this process changes the
    // number.
    unsafe {
        let status = (*pg_sys::MyProc).subxidStatus;
        if status.overflowed {
            u8::MAX
        } else {
            status.count
        }
    }
}

/// Runs `work` in a subtransaction, and commits it if `work` returns true. Otherwise, and after an
/// error, the subtransaction is rolled back: other transactions see its rows as if they had never
/// existed, and those that wait for it continue.
///
/// `work` must close what it opens: relations, scans and slots belong to the subtransaction.
pub fn in_subtransaction(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: these functions begin and end the subtransaction in pairs, as PL/pgSQL does. They
    // change the current memory context and resource owner, which are restored.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        let restore = move || {
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::CurrentResourceOwner = owner;
        };
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        // The commit can fail too. The level of the subtransaction must then also be removed.
        let is_kept = PgTryBuilder::new(AssertUnwindSafe(|| {
            let is_kept = work();
            if is_kept {
                pg_sys::ReleaseCurrentSubTransaction();
            }
            is_kept
        }))
        .catch_others(move |error| {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            restore();
            error.rethrow()
        })
        .execute();
        if !is_kept {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        restore();
        is_kept
    }
}
