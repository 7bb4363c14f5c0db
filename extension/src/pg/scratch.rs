//! Memory for one element of a list.

use pgrx::pg_sys;

/// A memory context that is reset after each element, so that a list needs only the memory of its
/// largest element. If memory ran out during many small allocations, PostgreSQL would have no
/// memory left to report the error.
pub struct Scratch(pg_sys::MemoryContext);

impl Scratch {
    pub fn new() -> Self {
        const FIRST_BLOCK: usize = 8 * 1024;
        const LARGEST_BLOCK: usize = 8 * 1024 * 1024;
        // SAFETY: the context is a child of the current context, and is deleted with it at the
        // latest.
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

    /// Runs `work` for one element. Its result must not refer to memory that `work` allocated from
    /// PostgreSQL.
    pub fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let result = within(self.0, work);
        // SAFETY: by the contract of this function nothing points into the context.
        unsafe { pg_sys::MemoryContextReset(self.0) };
        result
    }
}

/// The memory context in which this value was created. It is used for values that are created
/// later, under a [`Scratch`], and live longer.
#[derive(Clone, Copy)]
pub struct Home(pg_sys::MemoryContext);

impl Home {
    pub fn here() -> Self {
        // SAFETY: reads a variable of the backend.
        Home(unsafe { pg_sys::CurrentMemoryContext })
    }

    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        within(self.0, work)
    }
}

/// Runs `work` with `context` as the current memory context. After an error PostgreSQL itself sets
/// the current memory context.
pub fn within<T>(context: pg_sys::MemoryContext, work: impl FnOnce() -> T) -> T {
    // SAFETY: the context exists; the previous one is restored afterwards.
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
        // SAFETY: `new` created the context, and no other code uses it.
        unsafe { pg_sys::MemoryContextDelete(self.0) };
    }
}
