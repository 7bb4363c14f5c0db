//! idem: exactly-once message consumers inside PostgreSQL. This file is the map.
//!
//! A claim (`claim`) goes into a slice of a ring (`ring`, `destination`); its effects (`effects`) go into the outbox
//! (`outbox`), which wakes the relays (`wake`). What is not done yet is `work`, what it asks of others is in the `journal`. The
//! `worker` turns the rings. Tables, relays, rotation, views and grants
//! are SQL, in `sql/`; what needs no server is in `core/`. All unsafe code that others use is in `pg`.

// pgrx keeps SQLSTATE and hint of an ErrorReport only, and that is large; it is made on the way out of a failed call.
#![allow(clippy::result_large_err)]

use pgrx::prelude::*;

mod claim;
mod destination;
mod effects;
mod errors;
mod journal;
mod low;
mod names;
mod outbox;
mod pause;
mod pg;
mod relay;
mod ring;
mod settings;
mod shared;
mod sql_types;
mod stats;
mod wake;
mod work;
mod worker;

::pgrx::pg_module_magic!(name, version);

pgrx::extension_sql_file!("../../sql/00_schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!("../../sql/10_inbox.sql", name = "inbox", requires = ["schema"]);
pgrx::extension_sql_file!("../../sql/12_clock.sql", name = "clock", requires = ["inbox"]);
pgrx::extension_sql_file!("../../sql/20_outbox.sql", name = "outbox", requires = ["clock"]);
pgrx::extension_sql_file!("../../sql/30_types.sql", name = "types", requires = ["outbox"]);
pgrx::extension_sql_file!("../../sql/32_work.sql", name = "work", requires = ["types"]);
pgrx::extension_sql_file!("../../sql/34_turn_work.sql", name = "turn_work", requires = ["work"]);
pgrx::extension_sql_file!("../../sql/36_journal.sql", name = "journal", requires = ["turn_work"]);
pgrx::extension_sql_file!("../../sql/40_relay_tables.sql", name = "relay_tables", requires = ["journal"]);
pgrx::extension_sql_file!(
    "../../sql/50_relay_progress.sql",
    name = "relay_progress",
    requires = ["relay_tables"]
);
pgrx::extension_sql_file!(
    "../../sql/55_relay_batches.sql",
    name = "relay_batches",
    requires = ["relay_progress"]
);
pgrx::extension_sql_file!(
    "../../sql/60_relay_calls.sql",
    name = "relay_calls",
    requires = ["relay_batches"]
);
pgrx::extension_sql_file!(
    "../../sql/62_leases.sql",
    name = "leases",
    requires = [
        "relay_calls",
        names::key_of,
        names::find_destination,
        names::intern_destination,
        wake::tell_receivers,
    ]
);
pgrx::extension_sql_file!(
    "../../sql/63_next.sql",
    name = "next",
    requires = ["leases", low::low_mark, low::note_low]
);
pgrx::extension_sql_file!("../../sql/64_dead_letters.sql", name = "dead_letters", requires = ["next"]);
pgrx::extension_sql_file!("../../sql/65_relays.sql", name = "relays", requires = ["dead_letters"]);
pgrx::extension_sql_file!("../../sql/66_hand_over.sql", name = "hand_over", requires = ["relays"]);
pgrx::extension_sql_file!("../../sql/70_rotation.sql", name = "rotation", requires = ["hand_over"]);
pgrx::extension_sql_file!("../../sql/72_bodies.sql", name = "bodies", requires = ["rotation"]);
pgrx::extension_sql_file!("../../sql/75_maintenance.sql", name = "maintenance", requires = ["bodies"]);
pgrx::extension_sql_file!("../../sql/80_configure.sql", name = "configure", requires = ["maintenance"]);
pgrx::extension_sql_file!(
    "../../sql/85_views.sql",
    name = "views",
    requires = ["configure", stats::counters, ring::clock::ran]
);
pgrx::extension_sql_file!(
    "../../sql/88_checks.sql",
    name = "checks",
    requires = ["views", worker::worker_state]
);
pgrx::extension_sql_file!("../../sql/90_health.sql", name = "health", requires = ["checks"]);
pgrx::extension_sql_file!(
    "../../sql/92_calls.sql",
    name = "calls",
    requires = [
        "health",
        claim::api::idem_try_claim,
        claim::api::idem_try_claim_uuid,
        claim::api::idem_try_claim_batch,
        claim::api::idem_try_claim_batch_uuid,
        claim::api::idem_claim_text,
        claim::api::idem_claim_uuid,
        claim::api::idem_is_claimed,
        claim::api::idem_is_claimed_uuid,
        claim::api::idem_forget,
        claim::api::idem_forget_uuid,
        effects::api::idem_record_effects,
        effects::api::idem_record_effects_uuid,
        effects::api::idem_try_record,
        effects::api::idem_try_record_uuid,
        effects::api::idem_effects_text,
        effects::api::idem_effects_uuid,
        effects::api::idem_replay_effects,
        effects::api::idem_replay_effects_uuid,
        effects::api::idem_send,
        effects::api::idem_send_bytes,
        work::api::idem_acquire_text,
        work::api::idem_acquire_uuid,
        work::api::idem_complete,
        work::api::idem_complete_uuid,
        work::api::idem_receive_text,
        work::api::idem_receive_uuid,
        work::api::idem_receive_bytes_text,
        work::api::idem_receive_bytes_uuid,
        journal::api::idem_begin_call_text,
        journal::api::idem_begin_call_uuid,
        journal::api::idem_finish_call_text,
        journal::api::idem_finish_call_uuid,
        journal::api::idem_fail_call_text,
        journal::api::idem_fail_call_uuid,
        journal::api::idem_calls_text,
        journal::api::idem_calls_uuid,
        wake::idem_relay_wait,
        wake::idem_next_wait,
        ring::clock::ran,
        ring::clock::monotonic,
        ring::fence::fence,
        ring::fence::invalidate,
        relay::next_xid,
        stats::counters,
        worker::worker_state,
    ]
);
pgrx::extension_sql_file!("../../sql/95_grants.sql", name = "grants", finalize);

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    settings::define();
    // SAFETY: after the settings are defined; the flag is set by the postmaster while it preloads.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
        pgrx::pg_sys::MarkGUCPrefixReserved(c"idem".as_ptr());
        if pgrx::pg_sys::process_shared_preload_libraries_in_progress {
            shared::init();
            worker::register();
        }
    }
}
