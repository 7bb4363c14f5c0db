//! idem: exactly-once message consumers inside PostgreSQL. ARCHITECTURE.md explains the modules.

// The error type is large, because pgrx carries SQLSTATE and hint only in an ErrorReport. Its size
// does not matter, because it is built only when a function fails.
#![allow(clippy::result_large_err)]

#[macro_use]
mod sql_files;

mod claim;
mod complete;
mod destination;
mod effects;
mod errors;
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
mod sql_types;
mod stats;
mod wake;
mod worker;

pgrx::pg_module_magic!(name, version);

sql_files! {
    "schema" "../../sql/00_schema.sql",
    "functions" "../../sql/internal/functions.sql",
    "inbox" "../../sql/10_inbox.sql",
    "clock" "../../sql/12_clock.sql",
    "outbox" "../../sql/20_outbox.sql",
    "types" "../../sql/30_types.sql",
    "pending" "../../sql/32_pending.sql",
    "rotate_pending" "../../sql/34_rotate_pending.sql",
    "journal" "../../sql/36_journal.sql",
    "relay_tables" "../../sql/40_relay_tables.sql",
    "relay_progress" "../../sql/50_relay_progress.sql",
    "relay_batches" "../../sql/55_relay_batches.sql",
    "relay_calls" "../../sql/60_relay_calls.sql",
    "parked" "../../sql/61_parked.sql",
    "leases" "../../sql/62_leases.sql",
    "dead_letters" "../../sql/64_dead_letters.sql",
    "forward" "../../sql/65_forward.sql",
    "relays" "../../sql/65_relays.sql",
    "hand_over" "../../sql/66_hand_over.sql",
    "rotation" "../../sql/70_rotation.sql",
    "payloads" "../../sql/72_payloads.sql",
    "maintenance" "../../sql/75_maintenance.sql",
    "configure" "../../sql/80_configure.sql",
    "destinations" "../../sql/82_destinations.sql",
    "views" "../../sql/85_views.sql",
    "checks" "../../sql/88_checks.sql",
    "health" "../../sql/90_health.sql",
    "api_claim" "../../sql/api/claim.sql",
    "api_effects" "../../sql/api/effects.sql",
    "api_leases" "../../sql/api/leases.sql",
    "api_inbox" "../../sql/api/inbox.sql",
    "api_journal" "../../sql/api/journal.sql",
    "api_relays" "../../sql/api/relays.sql",
    "grants" "../../sql/95_grants.sql",
}

/// PostgreSQL calls this function when it loads the library.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    settings::define();
    if shared::is_preloading() {
        shared::init();
        worker::register();
    }
}
