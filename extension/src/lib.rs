//! idem: exactly-once message consumers inside PostgreSQL. This file lists the modules.
//!
//! A claim (`claim`) is inserted into a slice of a ring (`ring`, `destination`). Its effects
//! (`effects`) are appended to the outbox (`outbox`), which wakes the relays (`wake`). Messages
//! that are not done are in `pending`, external calls are in the `journal`. The `worker` rotates
//! the rings. Tables, relays, rotation, views and grants are SQL, in `sql/`. Code that needs no
//! server is in `core/`. Unsafe code that several modules use is in `pg`.

// The error type is large, because pgrx carries SQLSTATE and hint only in an ErrorReport. Its size
// does not matter, because it is built only when a function fails.
#![allow(clippy::result_large_err)]

use pgrx::prelude::*;

mod claim;
mod complete;
mod destination;
mod effects;
mod errors;
mod identity;
mod inbox;
mod journal;
mod names;
mod outbox;
mod pause;
mod pending;
mod pg;
mod relay;
mod ring;
mod settings;
mod shared;
mod slices;
mod sql_types;
mod stats;
mod wake;
mod worker;

::pgrx::pg_module_magic!(name, version);

pgrx::extension_sql_file!("../../sql/00_schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!(
    "../../sql/10_inbox.sql",
    name = "inbox",
    requires = ["schema"]
);
pgrx::extension_sql_file!(
    "../../sql/12_clock.sql",
    name = "clock",
    requires = ["inbox"]
);
pgrx::extension_sql_file!(
    "../../sql/20_outbox.sql",
    name = "outbox",
    requires = ["clock"]
);
pgrx::extension_sql_file!(
    "../../sql/30_types.sql",
    name = "types",
    requires = ["outbox"]
);
pgrx::extension_sql_file!(
    "../../sql/32_pending.sql",
    name = "pending",
    requires = ["types", pending::presence::note_pending]
);
pgrx::extension_sql_file!(
    "../../sql/34_rotate_pending.sql",
    name = "rotate_pending",
    requires = [
        "pending",
        pending::presence::pending_presence,
        pending::presence::set_pending_presence,
    ]
);
pgrx::extension_sql_file!(
    "../../sql/36_journal.sql",
    name = "journal",
    requires = ["rotate_pending"]
);
pgrx::extension_sql_file!(
    "../../sql/40_relay_tables.sql",
    name = "relay_tables",
    requires = ["journal"]
);
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
    "../../sql/61_parked.sql",
    name = "parked",
    requires = ["relay_calls"]
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
        pending::tables::enter_pending,
        inbox::claim_state,
        pending::failures::note_failure_sql,
        pending::failures::note_expired_lease,
        pending::failures::is_last_failure_sql,
        pending::policy::default_max_attempts,
    ]
);
pgrx::extension_sql_file!(
    "../../sql/64_dead_letters.sql",
    name = "dead_letters",
    requires = ["leases"]
);
pgrx::extension_sql_file!(
    "../../sql/65_forward.sql",
    name = "forward",
    requires = ["dead_letters", effects::letter::record_letter]
);
pgrx::extension_sql_file!(
    "../../sql/65_relays.sql",
    name = "relays",
    requires = ["forward"]
);
pgrx::extension_sql_file!(
    "../../sql/66_hand_over.sql",
    name = "hand_over",
    requires = ["relays"]
);
pgrx::extension_sql_file!(
    "../../sql/70_rotation.sql",
    name = "rotation",
    requires = ["hand_over"]
);
pgrx::extension_sql_file!(
    "../../sql/72_payloads.sql",
    name = "payloads",
    requires = ["rotation"]
);
pgrx::extension_sql_file!(
    "../../sql/75_maintenance.sql",
    name = "maintenance",
    requires = ["payloads"]
);
pgrx::extension_sql_file!(
    "../../sql/80_configure.sql",
    name = "configure",
    requires = ["maintenance"]
);
pgrx::extension_sql_file!(
    "../../sql/82_destinations.sql",
    name = "destinations",
    requires = ["configure", ring::fence::invalidate]
);
pgrx::extension_sql_file!(
    "../../sql/85_views.sql",
    name = "views",
    requires = ["destinations", stats::counters, ring::clock::ran]
);
pgrx::extension_sql_file!(
    "../../sql/88_checks.sql",
    name = "checks",
    requires = ["views", worker::worker_state]
);
pgrx::extension_sql_file!(
    "../../sql/90_health.sql",
    name = "health",
    requires = ["checks"]
);
pgrx::extension_sql_file!(
    "../../sql/92_calls.sql",
    name = "calls",
    requires = [
        "health",
        claim::api::idem_try_claim_text,
        claim::api::idem_try_claim_uuid,
        claim::api::idem_try_claim_batch,
        claim::api::idem_try_claim_uuid_batch,
        claim::api::idem_claim_text,
        claim::api::idem_claim_uuid,
        claim::api::idem_claim_in_block_text,
        claim::api::idem_claim_in_block_uuid,
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
        pending::api::idem_acquire_text,
        pending::api::idem_acquire_uuid,
        pending::api::idem_complete,
        pending::api::idem_complete_uuid,
        pending::api::idem_receive_text,
        pending::api::idem_receive_uuid,
        pending::api::idem_receive_bytes_text,
        pending::api::idem_receive_bytes_uuid,
        journal::api::idem_begin_call_text,
        journal::api::idem_begin_call_uuid,
        journal::api::idem_finish_call_text,
        journal::api::idem_finish_call_uuid,
        journal::api::idem_fail_call_text,
        journal::api::idem_fail_call_uuid,
        journal::api::idem_calls_text,
        journal::api::idem_calls_uuid,
        wake::idem_relay_wait,
        pending::wait::idem_next_wait,
        pending::next::idem_next,
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
    // SAFETY: the settings are defined; the postmaster sets the flag while it preloads libraries.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
        pgrx::pg_sys::MarkGUCPrefixReserved(c"idem".as_ptr());
        if pgrx::pg_sys::process_shared_preload_libraries_in_progress {
            shared::init();
            worker::register();
        }
    }
}
