//! The SQL files of the install script, in their order. A view, and a function body with RETURN or
//! BEGIN ATOMIC, may only use objects that were created before it. A body in quotes is not checked
//! at installation, so it may also use objects that are created later.

/// Puts SQL files into the install script: each after the file before it, the last one after
/// everything else.
macro_rules! sql_files {
    ($name:tt $path:tt, $($rest:tt)+) => {
        pgrx::extension_sql_file!($path, name = $name, bootstrap);
        sql_files!(after $name; $($rest)+);
    };
    (after $before:tt; $name:tt $path:tt,) => {
        pgrx::extension_sql_file!($path, name = $name, finalize);
    };
    (after $before:tt; $name:tt $path:tt, $($rest:tt)+) => {
        pgrx::extension_sql_file!($path, name = $name, requires = [$before]);
        sql_files!(after $name; $($rest)+);
    };
}

sql_files! {
    "schema_database" "../../sql/schema/database.sql",
    "internal_functions" "../../sql/internal/functions.sql",
    "schema_triggers" "../../sql/schema/triggers.sql",
    "schema_installation" "../../sql/schema/installation.sql",
    "schema_claims" "../../sql/schema/claims.sql",
    "schema_clock" "../../sql/schema/clock.sql",
    "schema_outbox" "../../sql/schema/outbox.sql",
    "api_types" "../../sql/api/types.sql",
    "schema_pending" "../../sql/schema/pending.sql",
    "schema_journal" "../../sql/schema/journal.sql",
    "schema_relays" "../../sql/schema/relays.sql",
    "schema_maintenance" "../../sql/schema/maintenance.sql",
    "schema_state" "../../sql/schema/state.sql",
    "schema_roles" "../../sql/schema/roles.sql",
    "internal_clock" "../../sql/internal/clock.sql",
    "internal_restore" "../../sql/internal/restore.sql",
    "internal_fence" "../../sql/internal/fence.sql",
    "internal_segments" "../../sql/internal/segments.sql",
    "internal_rotation" "../../sql/internal/rotation.sql",
    "internal_rotate_pending" "../../sql/internal/rotate_pending.sql",
    "internal_payloads" "../../sql/internal/payloads.sql",
    "internal_progress" "../../sql/internal/progress.sql",
    "internal_batches" "../../sql/internal/batches.sql",
    "internal_sequences" "../../sql/internal/sequences.sql",
    "internal_relays" "../../sql/internal/relays.sql",
    "internal_leases" "../../sql/internal/leases.sql",
    "internal_dead_letters" "../../sql/internal/dead_letters.sql",
    "internal_destinations" "../../sql/internal/destinations.sql",
    "internal_maintenance" "../../sql/internal/maintenance.sql",
    "internal_views" "../../sql/internal/views.sql",
    "schema_views" "../../sql/schema/views.sql",
    "internal_checks" "../../sql/internal/checks.sql",
    "internal_roles" "../../sql/internal/roles.sql",
    "api_claim" "../../sql/api/claim.sql",
    "api_commit" "../../sql/api/commit.sql",
    "api_effects" "../../sql/api/effects.sql",
    "api_leases" "../../sql/api/leases.sql",
    "api_inbox" "../../sql/api/inbox.sql",
    "api_journal" "../../sql/api/journal.sql",
    "api_dead_letters" "../../sql/api/dead_letters.sql",
    "api_relays" "../../sql/api/relays.sql",
    "api_retention" "../../sql/api/retention.sql",
    "api_restore" "../../sql/api/restore.sql",
    "api_maintenance" "../../sql/api/maintenance.sql",
    "api_roles" "../../sql/api/roles.sql",
    "api_overloads" "../../sql/api/overloads.sql",
    "grants" "../../sql/grants.sql",
}
