//! The shared memory of the filters. Its size is `idem.filter_memory`, so it cannot be a type with
//! a size that the compiler knows.
//!
//! At the start of the server no slot has a filter, so every claim may be in every slice.

use crate::ring::RINGS;
use crate::settings::FILTER_MEMORY_MB;
use crate::shared::{self, DATABASES, random};
use idem_core::filter::{Arena, Chunk, Slot};
use pgrx::prelude::*;
use pgrx::{PgSharedMemoryInitialization, pg_shmem_init, pg_sys};
use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The largest number of slices of a ring.
pub const SLICES: usize = crate::ring::MAX_SLICES;
/// The number of slots of one database.
const SLOTS: usize = RINGS * SLICES;
const NAME: &std::ffi::CStr = c"idem filters";
/// The alignment of slots and chunks: a cache line.
const ALIGNMENT: usize = 64;
/// The number of AddinShmemInitLock, which is the same in all supported versions (lwlocklist.h).
const ADDIN_SHMEM_INIT: usize = 21;

/// The beginning of the memory. The slots, the owners of the chunks and the chunks follow.
#[repr(C, align(64))]
struct Header {
    /// A random number, so that a sender cannot choose ids that fill one line of a filter.
    seed: AtomicU64,
    chunks: AtomicU64,
}

/// The address of the memory in this process, or null.
pub struct FilterMemory(AtomicPtr<Header>);

static MEMORY: FilterMemory = FilterMemory(AtomicPtr::new(std::ptr::null_mut()));

/// The sizes and positions of the parts.
struct Layout {
    chunks: usize,
    owners: usize,
    lines: usize,
    size: usize,
}

impl Layout {
    fn new(chunks: usize) -> Self {
        let owners = size_of::<Header>() + DATABASES * SLOTS * size_of::<Slot>();
        let lines = (owners + chunks * size_of::<AtomicU32>()).next_multiple_of(ALIGNMENT);
        Layout {
            chunks,
            owners,
            lines,
            // The beginning is aligned too.
            size: lines + chunks * size_of::<Chunk>() + ALIGNMENT,
        }
    }

    fn configured() -> Self {
        let bytes = (FILTER_MEMORY_MB.get().max(0) as usize) << 20;
        Layout::new(bytes / size_of::<Chunk>())
    }
}

/// Requests the shared memory. Called from `_PG_init` while libraries are preloaded.
pub fn init() {
    pg_shmem_init!(MEMORY);
}

impl PgSharedMemoryInitialization for FilterMemory {
    type Value = ();

    unsafe fn on_shmem_request(&'static self) {
        let layout = Layout::configured();
        if layout.chunks > 0 {
            // SAFETY: called from the request hook.
            unsafe { pg_sys::RequestAddinShmemSpace(layout.size) };
        }
    }

    unsafe fn on_shmem_startup(&'static self, (): ()) {
        let layout = Layout::configured();
        if layout.chunks == 0 {
            return;
        }
        let mut found = false;
        // SAFETY: called from the startup hook. The memory was requested with this size.
        let header = unsafe {
            let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT)).lock;
            pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
            let memory = pg_sys::ShmemInitStruct(NAME.as_ptr(), layout.size, &mut found);
            let address = memory.addr().next_multiple_of(ALIGNMENT);
            let header = memory.with_addr(address).cast::<Header>();
            if !found {
                // The lines of a chunk are initialized when a filter takes the chunk.
                std::ptr::write_bytes(header.cast::<u8>(), 0, layout.lines);
                (*header).seed.store(random(), Ordering::Relaxed);
                (*header)
                    .chunks
                    .store(layout.chunks as u64, Ordering::Relaxed);
            }
            pg_sys::LWLockRelease(lock);
            header
        };
        self.0.store(header, Ordering::Relaxed);
    }
}

/// The memory as this process sees it.
#[derive(Clone, Copy)]
pub struct Filters {
    pub arena: Arena<'static>,
    pub seed: u64,
}

/// Returns the memory, or `None` if `idem.filter_memory` is 0.
pub fn filters() -> Option<Filters> {
    let header = MEMORY.0.load(Ordering::Relaxed);
    if header.is_null() {
        return None;
    }
    // SAFETY: the memory was initialized with this layout, and lives as long as the process. All
    // parts are atomics.
    unsafe {
        let layout = Layout::new((*header).chunks.load(Ordering::Relaxed) as usize);
        let at = |offset: usize| header.cast::<u8>().add(offset);
        Some(Filters {
            arena: Arena {
                slots: std::slice::from_raw_parts(header.add(1).cast(), DATABASES * SLOTS),
                owners: std::slice::from_raw_parts(at(layout.owners).cast(), layout.chunks),
                chunks: std::slice::from_raw_parts(at(layout.lines).cast(), layout.chunks),
            },
            seed: (*header).seed.load(Ordering::Relaxed),
        })
    }
}

/// Returns the number of the slot of a slice, or `None` if this database has no slots.
pub fn slot_of(ring: usize, slice: usize) -> Option<usize> {
    let slot = slots_of(ring).nth(slice)?;
    (slice < SLICES).then_some(slot)
}

/// Returns the numbers of the slots of one ring of this database.
pub fn slots_of(ring: usize) -> Range<usize> {
    let slots = slots();
    let first = slots.start + ring * SLICES;
    first..(first + SLICES).min(slots.end)
}

/// Returns the numbers of the slots of this database.
pub fn slots() -> Range<usize> {
    shared::this_database_number().map_or(0..0, slots_of_database)
}

/// Returns the numbers of the slots of a database.
pub fn slots_of_database(database: usize) -> Range<usize> {
    database * SLOTS..(database + 1) * SLOTS
}
