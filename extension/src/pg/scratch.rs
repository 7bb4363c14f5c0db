//! Memory for one element of a list.

use pgrx::pg_sys;

/// A memory context that is emptied after each element, so that a list takes no more than its
/// largest element. When memory ends in the middle of many small requests, PostgreSQL has none left
/// to report the error.
pub struct Scratch(pg_sys::MemoryContext);

impl Scratch {
    pub fn new() -> Self {
        const FIRST_BLOCK: usize = 8 * 1024;
        const LARGEST_BLOCK: usize = 8 * 1024 * 1024;
        // SAFETY: the context belongs to the current one, and is deleted with it at the latest.
        Scratch(unsafe {
            pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"idem element".as_ptr(),
                0,
                FIRST_BLOCK,
                LARGEST_BLOCK,
            )
        })
    }

    /// Does the work of one element. Its result must hold nothing that the work has allocated from
    /// PostgreSQL.
    pub fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let result = within(self.0, work);
        // SAFETY: by the contract of this function nothing points into the context any longer.
        unsafe { pg_sys::MemoryContextReset(self.0) };
        result
    }
}

/// Runs with a memory context as the current one; after an error PostgreSQL chooses another by
/// itself.
pub fn within<T>(context: pg_sys::MemoryContext, work: impl FnOnce() -> T) -> T {
    // SAFETY: the context lives; the one from before is current again afterwards.
    unsafe {
        let before = pg_sys::MemoryContextSwitchTo(context);
        let result = work();
        pg_sys::MemoryContextSwitchTo(before);
        result
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: made in new, and nothing else uses it.
        unsafe { pg_sys::MemoryContextDelete(self.0) };
    }
}
