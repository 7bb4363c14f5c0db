-- The functions in Rust that only the extension's own SQL calls. They are in
-- extension/src/sql_api/internal.rs and extension/src/sql_api/maintenance.rs.

CREATE FUNCTION idem.key_of(id text) RETURNS uuid
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'key_of_wrapper';
COMMENT ON FUNCTION idem.key_of(text) IS 'Returns the key of a message id. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_same_id(
    row_key uuid, row_id text, id text, destination text
) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'check_same_id_wrapper';
COMMENT ON FUNCTION idem.check_same_id(uuid, text, text, text) IS
    'Checks that a row with the key of a message id is not one of another id. row_key: null if '
    'there is no row. row_id: null if the row is one of a uuid. Errors: 22004, 22023, 23000.';

CREATE FUNCTION idem.check_payload(bytes bigint) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'check_payload_wrapper';
COMMENT ON FUNCTION idem.check_payload(bigint) IS
    'Checks the size of a payload. Errors: 22004, 54000 (larger than idem.max_payload).';

CREATE FUNCTION idem.largest_payload() RETURNS bigint
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'largest_payload_wrapper';
COMMENT ON FUNCTION idem.largest_payload() IS
    'Returns the largest value of idem.max_payload, in bytes. The server can return such a '
    'payload as text.';

CREATE FUNCTION idem.too_large(bytes bigint) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.format('the payload has %s bytes, which is too large to be returned', bytes);
COMMENT ON FUNCTION idem.too_large(bigint) IS
    'Returns the error of a message that the server cannot return.';

CREATE FUNCTION idem.find_destination(name text) RETURNS integer
LANGUAGE c AS 'MODULE_PATHNAME', 'find_destination_wrapper';
COMMENT ON FUNCTION idem.find_destination(text) IS
    'Returns the id of a destination; null if it was never used. Errors: 22004, 22023.';

CREATE FUNCTION idem.intern_destination(name text) RETURNS integer
LANGUAGE c AS 'MODULE_PATHNAME', 'intern_destination_wrapper';
COMMENT ON FUNCTION idem.intern_destination(text) IS
    'Returns the id of a destination, which is created if it is new. Errors: 22004, 22023, 25006.';

CREATE FUNCTION idem.enter_pending() RETURNS integer
LANGUAGE c AS 'MODULE_PATHNAME', 'enter_pending_wrapper';
COMMENT ON FUNCTION idem.enter_pending() IS
    'Returns the number of the current table of pending messages, and locks it for writing until '
    'the end of the transaction.';

CREATE FUNCTION idem.invalidate_filter(slice regclass) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'invalidate_filter_wrapper';
COMMENT ON FUNCTION idem.invalidate_filter(regclass) IS
    'Makes the filter of a slice exclude nothing, because a row arrives that was not added to it. '
    'Returns true. The constraints of the slices call it; claims do not execute them.';

CREATE FUNCTION idem.filter_states() RETURNS TABLE (
    ring                     integer,
    slice                    integer,
    status                   text,
    reason                   text,
    is_being_built           boolean,
    bytes                    bigint,
    bits_per_claim           integer,
    expected_false_positives double precision,
    observed_false_positives double precision,
    look_ups                 bigint
)
LANGUAGE c AS 'MODULE_PATHNAME', 'filter_states_wrapper';
COMMENT ON FUNCTION idem.filter_states() IS
    'Returns the rows of the view idem.filters. is_being_built: a filter is being built for the '
    'slice, the first one or a larger one.';

CREATE FUNCTION idem.filter_memory() RETURNS TABLE (database oid, bytes bigint)
LANGUAGE c AS 'MODULE_PATHNAME', 'filter_memory_wrapper';
COMMENT ON FUNCTION idem.filter_memory() IS
    'Returns how much of idem.filter_memory the filters of each database use.';

CREATE FUNCTION idem.build_filters(ring integer) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'build_filters_wrapper';
COMMENT ON FUNCTION idem.build_filters(integer) IS
    'Does one step for the filters of a ring. Returns true if a step was done.';

CREATE FUNCTION idem.prepare_opened_filter(ring integer) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'prepare_opened_filter_wrapper';
COMMENT ON FUNCTION idem.prepare_opened_filter(integer) IS
    'Prepares the filter of the slice that this transaction opens.';

CREATE FUNCTION idem.note_pending(seq bigint) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'note_pending_wrapper';
COMMENT ON FUNCTION idem.note_pending(bigint) IS
    'Records in shared memory that a message may be pending. Always returns true, for the CHECK '
    'constraints of the tables.';

CREATE FUNCTION idem.pending_presence() RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'pending_presence_wrapper';
COMMENT ON FUNCTION idem.pending_presence() IS
    'Returns what shared memory records about pending messages: some, quiet (the last pass found '
    'none) or none.';

CREATE FUNCTION idem.set_pending_presence(note text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'set_pending_presence_wrapper';
COMMENT ON FUNCTION idem.set_pending_presence(text) IS
    'Records quiet, or none after quiet. The caller of none must hold ACCESS EXCLUSIVE on both '
    'tables.';

CREATE FUNCTION idem.wake_consumers() RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'wake_consumers_wrapper';
COMMENT ON FUNCTION idem.wake_consumers() IS
    'Wakes the sessions that wait for messages when the current transaction commits.';

CREATE FUNCTION idem.default_max_attempts() RETURNS integer
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'default_max_attempts_wrapper';
COMMENT ON FUNCTION idem.default_max_attempts() IS
    'Returns the number of attempts of a message, unless idem_configure_retries sets another '
    'number.';

CREATE FUNCTION idem.note_failure(
    errors jsonb, attempt integer, error text, final boolean
) RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'note_failure_sql_wrapper';
COMMENT ON FUNCTION idem.note_failure(jsonb, integer, text, boolean) IS
    'Returns the errors of a message with another error at the end. The newest 100 errors are '
    'kept, with at most 2,000 bytes each.';

CREATE FUNCTION idem.note_expired_lease(errors jsonb, attempt integer) RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'note_expired_lease_wrapper';
COMMENT ON FUNCTION idem.note_expired_lease(jsonb, integer) IS
    'Returns the errors of a message with the error of an attempt that ended because its lease '
    'expired.';

CREATE FUNCTION idem.is_last_failure(errors jsonb, attempt integer, error text) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'is_last_failure_sql_wrapper';
COMMENT ON FUNCTION idem.is_last_failure(jsonb, integer, text) IS
    'Returns whether the newest error of a message is this error of this attempt.';

CREATE FUNCTION idem.record_letter(
    id text, destination text, topic text, payload bytea, key text, type text, headers jsonb,
    traceparent text, content_type text
) RETURNS uuid
LANGUAGE c AS 'MODULE_PATHNAME', 'record_letter_wrapper';
COMMENT ON FUNCTION idem.record_letter(text, text, text, bytea, text, text, jsonb, text, text) IS
    'Records a dead letter as an effect of its message, which the current transaction has '
    'claimed, and returns the message id of the effect. Errors: 22004, 22023, 23000, 25006, 55000 '
    '(no claim).';

CREATE FUNCTION idem.ran() RETURNS interval
LANGUAGE c AS 'MODULE_PATHNAME', 'ran_wrapper';
COMMENT ON FUNCTION idem.ran() IS
    'Returns the current reading of the clock of the rings: see idem.clock.';

CREATE FUNCTION idem.monotonic() RETURNS interval
LANGUAGE c AS 'MODULE_PATHNAME', 'monotonic_wrapper';
COMMENT ON FUNCTION idem.monotonic() IS 'Returns the monotonic clock of the system.';

CREATE FUNCTION idem.lockers(relation oid) RETURNS text[]
LANGUAGE c AS 'MODULE_PATHNAME', 'lockers_wrapper';
COMMENT ON FUNCTION idem.lockers(oid) IS
    'Returns the transactions that hold a lock on the relation that conflicts with SHARE, as in '
    'pg_locks.virtualtransaction. Errors: 25001 (for idem.ring, in a transaction that published '
    'a state), 58000.';

CREATE FUNCTION idem.still_running(lockers text[], wait_ms integer) RETURNS text[]
LANGUAGE c AS 'MODULE_PATHNAME', 'still_running_wrapper';
COMMENT ON FUNCTION idem.still_running(text[], integer) IS
    'Returns those of these transactions that have not ended, as soon as all have ended or the '
    'time has passed. A prepared transaction has not ended.';

CREATE FUNCTION idem.server_run() RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'server_run_wrapper';
COMMENT ON FUNCTION idem.server_run() IS
    'Returns what is different in each database and after each start or crash of the server, so '
    'that virtual transaction ids of another database or of an earlier start are not used.';

CREATE FUNCTION idem.invalidate(relation oid) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'invalidate_wrapper';
COMMENT ON FUNCTION idem.invalidate(oid) IS
    'Makes every backend read this table again at its next claim.';

CREATE FUNCTION idem.truncated_error(error text) RETURNS text
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'truncated_error_wrapper';
COMMENT ON FUNCTION idem.truncated_error(text) IS
    'Returns the first 2,000 bytes of an error, without a part of a character: what is stored.';

CREATE FUNCTION idem.record_load(loaded oid) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'record_load_wrapper';
COMMENT ON FUNCTION idem.record_load(oid) IS
    'Records at once, for every session, that this transaction inserts rows into the table. Does '
    'nothing in functions with SECURITY DEFINER, such as those of idem, and in CREATE EXTENSION.';

CREATE FUNCTION idem.is_aborted(tx xid8) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'is_aborted_wrapper';
COMMENT ON FUNCTION idem.is_aborted(xid8) IS
    'Returns whether the transaction was rolled back. False if the server does not know it.';

CREATE FUNCTION idem.is_preloaded() RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'is_preloaded_wrapper';
COMMENT ON FUNCTION idem.is_preloaded() IS
    'Returns whether the server has loaded the library at its start.';

CREATE FUNCTION idem.check_usable() RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'check_usable_wrapper';
COMMENT ON FUNCTION idem.check_usable() IS
    'Errors: 58000 (the library is not preloaded or does not support this version of the extension, '
    'or the database is being restored).';

CREATE FUNCTION idem.is_restoring() RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'is_restoring_wrapper';
COMMENT ON FUNCTION idem.is_restoring() IS
    'Returns whether a restore has begun to load the state of the extension and is not finished.';

CREATE FUNCTION idem.check_transaction(call text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'check_transaction_wrapper';
COMMENT ON FUNCTION idem.check_transaction(text) IS
    'Checks that the transaction can write and sees the latest committed state. call: the function '
    'that needs it. Errors: 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), '
    '58000 (the library is not preloaded).';

CREATE FUNCTION idem.note_floor(
    floor_from bigint, floor_to bigint, ceiling_to bigint
) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'note_floor_wrapper';
COMMENT ON FUNCTION idem.note_floor(bigint, bigint, bigint) IS
    'Records in shared memory that a relay has these floors. Always returns true, for the CHECK '
    'constraints of the tables.';

CREATE FUNCTION idem.highest_floor() RETURNS bigint
LANGUAGE c AS 'MODULE_PATHNAME', 'highest_floor_wrapper';
COMMENT ON FUNCTION idem.highest_floor() IS
    'Returns the highest floor of the relays. Each number that is taken later is above it, unless '
    'the sequence of the outbox went backwards.';

CREATE FUNCTION idem.fail_behind("of" text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'fail_behind_wrapper';
COMMENT ON FUNCTION idem.fail_behind(text) IS
    'Fails with 58000: this sequence is behind the rows that it numbers.';

CREATE FUNCTION idem.next_xid() RETURNS xid8
LANGUAGE c AS 'MODULE_PATHNAME', 'next_xid_wrapper';
COMMENT ON FUNCTION idem.next_xid() IS
    'Returns the next transaction id. All running transactions have lower ids.';

CREATE FUNCTION idem.counters() RETURNS TABLE (name text, value bigint)
LANGUAGE c AS 'MODULE_PATHNAME', 'counters_wrapper';
COMMENT ON FUNCTION idem.counters() IS 'Returns the rows of the view idem.stats.';

CREATE FUNCTION idem.worker_state() RETURNS TABLE (
    since_pass interval, naptime_ms integer
)
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_state_wrapper';
COMMENT ON FUNCTION idem.worker_state() IS 'Returns the state of the worker for idem_health.';

CREATE FUNCTION idem.worker_passes() RETURNS TABLE (database oid, since_pass interval)
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_passes_wrapper';
COMMENT ON FUNCTION idem.worker_passes() IS
    'Returns the databases of the server in which the worker has run a pass since the server '
    'started, and the time since the last pass.';
