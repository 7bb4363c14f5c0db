//! idem: exactly-once message consumers inside PostgreSQL. ARCHITECTURE.md explains the modules.

// The functions that SQL calls return an ErrorReport as their error, because pgrx takes SQLSTATE
// and hint from this type. It is large, but it is built only when a function fails.
#![allow(clippy::result_large_err)]

mod claim;
mod claim_row;
mod commit_guard;
mod complete;
mod destination;
mod effects;
mod errors;
mod filters;
mod forget;
mod identity;
mod inbox;
mod journal;
mod outbox;
mod pause;
mod pending;
mod pg;
mod ring;
mod settings;
mod shared;
mod slices;
mod sql_api;
mod sql_files;
mod sql_types;
mod stats;
mod transaction_end;
mod utility;
mod wake;
mod worker;

pgrx::pg_module_magic!(name, version);

/// PostgreSQL calls this function when it loads the library.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    errors::keep_backtraces_away();
    settings::define();
    if shared::is_preloading() {
        shared::init();
        filters::init();
        utility::init();
        worker::register();
    }
}
