-- The install script of idem 0.3.0. It is generated: the files of sql/, in the order of
-- extension/src/sql_files.rs.

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- bootstrap
-- Checks the database and creates the schema of the tables.
--
-- No install script uses IF NOT EXISTS or OR REPLACE: if another role has created an object of the
-- same name before, the installation must fail and not use that object (CVE-2022-2625).
--
-- The script runs with the schema of the extension in search_path, and another role may have
-- created functions and operators there. PostgreSQL prefers one that needs no cast, also to one of
-- pg_catalog. So a name is qualified, or a literal has a type, where the function of pg_catalog
-- needs a cast, is polymorphic or is variadic. This applies to everything that is parsed at
-- installation: DO blocks, constraints, defaults, views, and bodies with RETURN or BEGIN ATOMIC.
-- Bodies in quotes have a search_path of their own. All bodies call the functions of that schema
-- with all arguments and with their exact types.

DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'idem requires encoding UTF8, but this database has encoding %',
            pg_catalog.getdatabaseencoding()
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Create the database with CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE '
                         'template0: effects are stored and published as UTF-8 bytes.';
    END IF;
END
$$;

CREATE SCHEMA idem;
COMMENT ON SCHEMA idem IS
    'Tables and views of the extension idem. Applications need no privilege on this schema: see '
    'idem_grant.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_database

-- The functions in Rust that only the extension's own SQL calls. They are in
-- extension/src/sql_api/internal.rs and extension/src/sql_api/maintenance.rs.

CREATE FUNCTION idem.key_of(id text) RETURNS uuid
LANGUAGE c IMMUTABLE AS 'MODULE_PATHNAME', 'key_of_wrapper';
COMMENT ON FUNCTION idem.key_of(text) IS 'Returns the key of a message id. Errors: 22004, 22023.';

CREATE FUNCTION idem.find_destination(name text) RETURNS integer
LANGUAGE c AS 'MODULE_PATHNAME', 'find_destination_wrapper';
COMMENT ON FUNCTION idem.find_destination(text) IS
    'Returns the id of a destination; null if it was never used. Errors: 22004, 22023.';

CREATE FUNCTION idem.intern_destination(name text) RETURNS integer
LANGUAGE c AS 'MODULE_PATHNAME', 'intern_destination_wrapper';
COMMENT ON FUNCTION idem.intern_destination(text) IS
    'Returns the id of a destination, which is created if it is new. Errors: 22004, 22023, 25006.';

CREATE FUNCTION idem.claim_state(id text, destination text) RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'claim_state_wrapper';
COMMENT ON FUNCTION idem.claim_state(text, text) IS
    'Returns free, claimed, or in_progress if a running transaction is claiming the message.';

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
    bytes                    bigint,
    bits_per_claim           integer,
    expected_false_positives double precision,
    observed_false_positives double precision,
    look_ups                 bigint
)
LANGUAGE c AS 'MODULE_PATHNAME', 'filter_states_wrapper';
COMMENT ON FUNCTION idem.filter_states() IS 'Returns the rows of the view idem.filters.';

CREATE FUNCTION idem.build_filters(ring integer) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'build_filters_wrapper';
COMMENT ON FUNCTION idem.build_filters(integer) IS
    'Does one step for the filters of a ring. Returns true if a step was done.';

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

CREATE FUNCTION idem.fence(step text, wait boolean) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'fence_wrapper';
COMMENT ON FUNCTION idem.fence(text, boolean) IS
    'Returns true when all transactions have ended that held a lock of claims on idem.ring at the '
    'first check of this step. wait: wait for these transactions for some time before returning '
    'false.';

CREATE FUNCTION idem.invalidate(relation oid) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'invalidate_wrapper';
COMMENT ON FUNCTION idem.invalidate(oid) IS
    'Makes every backend read this table again at its next claim.';

CREATE FUNCTION idem.check_version() RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'check_version_for_sql_wrapper';
COMMENT ON FUNCTION idem.check_version() IS
    'Errors: 58000 (the library does not support this version of the extension).';

CREATE FUNCTION idem.next_xid() RETURNS xid8
LANGUAGE c AS 'MODULE_PATHNAME', 'next_xid_wrapper';
COMMENT ON FUNCTION idem.next_xid() IS
    'Returns the next transaction id. All running transactions have lower ids.';

CREATE FUNCTION idem.counters() RETURNS TABLE (name text, value bigint)
LANGUAGE c AS 'MODULE_PATHNAME', 'counters_wrapper';
COMMENT ON FUNCTION idem.counters() IS 'Returns the rows of the view idem.stats.';

CREATE FUNCTION idem.worker_state() RETURNS TABLE (
    preloaded boolean, since_pass interval, naptime_ms integer
)
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_state_wrapper';
COMMENT ON FUNCTION idem.worker_state() IS 'Returns the state of the worker for idem_health.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_functions

-- Trigger functions of several tables.

-- CREATE EXTENSION inserts the first state, and pg_restore inserts the state of the dump. This
-- trigger lets the later row replace the earlier row.
CREATE FUNCTION idem.replace_row_by_id() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE pg_catalog.format('DELETE FROM %I.%I WHERE id = $1', TG_TABLE_SCHEMA, TG_TABLE_NAME)
      USING NEW.id;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.replace_row_by_id() IS
    'Trigger function: deletes the row with the id of the new row, so that pg_restore replaces '
    'the rows that CREATE EXTENSION inserted.';

-- A dump of version 0.2.0 has four slices for each ring. The new slices are empty, so they become
-- the oldest sealed slices: the next rotations remove them first. They get the times of the slice
-- that was the oldest, so that the ring remembers and the outbox keeps what they did before.
CREATE FUNCTION idem.add_slices() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_slices int2[] := ARRAY(SELECT n FROM unnest(idem.slice_numbers(NEW.id)) n
                                WHERE n <> ALL (NEW.slices) ORDER BY n);
    count      integer := cardinality(new_slices);
    oldest     integer := NEW.slices[3] + 1;
BEGIN
    NEW.slices  := NEW.slices[:2] || new_slices || NEW.slices[3:];
    NEW.opened  := NEW.opened || array_fill(NEW.opened[oldest], ARRAY[count]);
    NEW.started := NEW.started || array_fill(NEW.started[oldest], ARRAY[count]);
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.add_slices() IS
    'Trigger function: adds the slices that a ring does not have, because its row was written by '
    'an earlier version.';

CREATE FUNCTION idem.publish() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.invalidate(TG_RELID);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem.publish() IS
    'Trigger function: makes every backend read the changed table again at its next claim.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_triggers

-- The inbox: the claims, one row for each processed message. Claims are stored in rings of slices.
-- A slice is emptied by TRUNCATE, never by DELETE.

-- The ids of destinations are not taken from a sequence, because a transaction that rolls back
-- would use up a number: see extension/src/destination.rs.
CREATE TABLE idem.destination (
    id            int4        NOT NULL,
    ring          int2        NOT NULL DEFAULT 1,
    left_short    interval,
    left_standard interval,
    left_long     interval,
    name          text COLLATE pg_catalog."C" NOT NULL,
    retention     interval,
    CONSTRAINT destination_name_key UNIQUE (name),
    CONSTRAINT destination_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE  idem.destination IS
    'The consuming endpoints by name. The first claim of a destination creates its row; '
    'idem_configure changes it.';
COMMENT ON COLUMN idem.destination.ring IS
    'The ring (idem.ring.id) that stores new claims of the destination.';
COMMENT ON COLUMN idem.destination.left_short IS
    'The reading of idem.clock.ran when the destination moved from the ring short to another '
    'ring. Claims also look in the ring short until that ring no longer holds claims of that '
    'time. Null: the destination never left the ring short, or returned to it.';
COMMENT ON COLUMN idem.destination.left_standard IS 'The same for the ring standard.';
COMMENT ON COLUMN idem.destination.left_long IS 'The same for the ring long.';
COMMENT ON COLUMN idem.destination.retention IS
    'The retention that idem_configure set. Null: the retention of the ring applies.';

-- More slices make the retained storage smaller, because less than one period is kept beyond the
-- retention, and the current slice is smaller. Each claim checks the filter of each slice.
CREATE FUNCTION idem.slice_numbers(ring int2) RETURNS int2[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE ring WHEN 3 THEN '{0,1,2,3}'::int2[] ELSE '{0,1,2,3,4,5,6,7}'::int2[] END;
COMMENT ON FUNCTION idem.slice_numbers(int2) IS
    'Returns the numbers of the slices of a ring: four slices of the outbox, eight of each ring '
    'of the inbox.';

CREATE TABLE idem.ring (
    id              int2        NOT NULL,
    slices          int2[]      NOT NULL,
    opening         boolean     NOT NULL DEFAULT false,
    emptying        boolean     NOT NULL DEFAULT false,
    remembers_since interval,
    rotated_at      interval    NOT NULL DEFAULT '0',
    rotations       bigint      NOT NULL DEFAULT 0,
    opened          interval[]  NOT NULL,
    started         interval[]  NOT NULL,
    scheduled_at    interval,
    retention       interval    NOT NULL,
    name            text        NOT NULL,
    CONSTRAINT ring_pkey PRIMARY KEY (id),
    CONSTRAINT ring_has_each_slice_once
        CHECK (slices OPERATOR(pg_catalog.@>) idem.slice_numbers(id)
               AND pg_catalog.cardinality(slices)
                   OPERATOR(pg_catalog.=) pg_catalog.cardinality(idem.slice_numbers(id))),
    CONSTRAINT ring_has_times_of_each_slice
        CHECK (pg_catalog.cardinality(opened)
                   OPERATOR(pg_catalog.=) pg_catalog.cardinality(slices)
               AND pg_catalog.cardinality(started)
                   OPERATOR(pg_catalog.=) pg_catalog.cardinality(slices)),
    CONSTRAINT ring_has_one_phase CHECK (NOT (opening AND emptying)),
    CONSTRAINT ring_retention_is_positive CHECK (retention > '0')
);
COMMENT ON TABLE  idem.ring IS
    'The state of each ring. Every claim locks this table ROW EXCLUSIVE until its transaction '
    'ends, and the fence of a rotation waits for these locks.';
COMMENT ON COLUMN idem.ring.slices IS
    'The numbers of the slices: current, next, and the sealed slices, the oldest first. A rotation '
    'moves the first number to the end.';
COMMENT ON COLUMN idem.ring.opening IS
    'True from the first step of a rotation until the slices rotate: claims are written to '
    'current and next.';
COMMENT ON COLUMN idem.ring.emptying IS
    'True after the slices have rotated: next still holds the oldest claims. It is truncated when '
    'no transaction can read it any more.';
COMMENT ON COLUMN idem.ring.remembers_since IS
    'Every claim made since this time is found. Null: every claim is found. All times in this '
    'table are readings of idem.clock.ran.';
COMMENT ON COLUMN idem.ring.rotated_at IS 'The time of the last rotation.';
COMMENT ON COLUMN idem.ring.scheduled_at IS
    'The time at which the retention was changed last. Under the new retention no rotation was '
    'due before this time.';
COMMENT ON COLUMN idem.ring.opened IS
    'The time since which claims are written to each slice, by slice number + 1. It can be long '
    'before the time in started, because the fence is between the two.';
COMMENT ON COLUMN idem.ring.started IS
    'The time at which each slice last became current, by slice number + 1.';

CREATE TRIGGER replace_row BEFORE INSERT ON idem.ring
    FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.ring ENABLE ALWAYS TRIGGER replace_row;

CREATE TRIGGER add_slices BEFORE INSERT ON idem.ring
    FOR EACH ROW EXECUTE FUNCTION idem.add_slices();
ALTER TABLE idem.ring ENABLE ALWAYS TRIGGER add_slices;

INSERT INTO idem.ring (id, name, retention, slices, opened, started)
SELECT r.id, r.name, r.retention::interval, idem.slice_numbers(r.id), t.zeros, t.zeros
  FROM (VALUES (0::int2, 'short',    '1 hour'),
               (1::int2, 'standard', '7 days'),
               (2::int2, 'long',     '30 days'),
               (3::int2, 'outbox',   '45 days')) AS r (id, name, retention),
       LATERAL pg_catalog.array_fill(
           '0'::interval, ARRAY[pg_catalog.cardinality(idem.slice_numbers(r.id))]) AS t (zeros);

-- A claim takes 56 bytes, because the columns with the widest alignment come first. A text id is
-- stored beside its key, so that a duplicate is distinguished from another text with the same key.
-- VACUUM after inserts is off, because a slice is truncated before it is worthwhile to freeze its
-- rows. Each command that inserts a row executes the constraint, except claims. NOT VALID: an
-- upgrade adds it without reading the rows that are there.
DO $$
DECLARE
    ring  text;
    slice int2;
BEGIN
    FOREACH ring IN ARRAY ARRAY['short', 'standard', 'long'] LOOP
        FOREACH slice IN ARRAY idem.slice_numbers(0::int2) LOOP
            EXECUTE pg_catalog.format($ddl$
                CREATE TABLE idem.inbox_%1$s_%2$s (
                    key         uuid        NOT NULL,
                    claimed_at  timestamptz NOT NULL,
                    destination int4        NOT NULL,
                    id          text,
                    fingerprint bytea,
                    CONSTRAINT inbox_%1$s_%2$s_pkey PRIMARY KEY (key, destination)
                ) WITH (autovacuum_vacuum_insert_threshold = -1);
                ALTER TABLE idem.inbox_%1$s_%2$s ADD CONSTRAINT row_invalidates_the_filter
                    CHECK (idem.invalidate_filter('idem.inbox_%1$s_%2$s'::pg_catalog.regclass))
                    NOT VALID;
                COMMENT ON TABLE idem.inbox_%1$s_%2$s IS
                    'A slice of the inbox: claims. Written and read by idem_try_claim and related '
                    'functions only.';
                $ddl$, ring, slice);
            PERFORM pg_catalog.pg_extension_config_dump(
                pg_catalog.format('idem.inbox_%s_%s', ring, slice)::pg_catalog.regclass, '');
        END LOOP;
    END LOOP;
END
$$;

SELECT pg_catalog.pg_extension_config_dump('idem.destination', '');
SELECT pg_catalog.pg_extension_config_dump('idem.ring', '');

-- ENABLE ALWAYS: the triggers also fire in a session with session_replication_role = replica.
-- Without them a change by such a session would send no invalidation, and backends would keep the
-- old state.
CREATE TRIGGER publish AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idem.ring
    FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
ALTER TABLE idem.ring ENABLE ALWAYS TRIGGER publish;
CREATE TRIGGER publish AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idem.destination
    FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
ALTER TABLE idem.destination ENABLE ALWAYS TRIGGER publish;
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_inbox

-- The clock of the rings. Rotations do not compare readings of the wall clock, which can jump. They
-- compare readings of the column ran: the time that the monotonic clock has counted while the
-- server ran. See extension/src/ring/clock.rs.

CREATE TABLE idem.clock (
    id             int2        NOT NULL DEFAULT 1,
    zero_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    read_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    server_started timestamptz NOT NULL DEFAULT '-infinity',
    ran            interval    NOT NULL DEFAULT '0',
    monotonic      interval    NOT NULL DEFAULT '0',
    jumped_at      interval,
    jumped_by      interval,
    CONSTRAINT clock_pkey PRIMARY KEY (id),
    CONSTRAINT clock_is_one_row CHECK (id = 1)
);
COMMENT ON TABLE  idem.clock IS
    'The clock that decides when the rings rotate. Each maintenance pass stores a reading, at '
    'most every ten seconds.';
COMMENT ON COLUMN idem.clock.zero_at IS
    'The wall clock time at which ran is zero: ran + zero_at is the wall clock. The value changes '
    'when the wall clock jumps, and at a restart.';
COMMENT ON COLUMN idem.clock.read_at IS 'The wall clock at this reading.';
COMMENT ON COLUMN idem.clock.server_started IS
    'The start time of the server that read the monotonic clock.';
COMMENT ON COLUMN idem.clock.ran IS
    'The time that has certainly passed since the extension was created.';
COMMENT ON COLUMN idem.clock.monotonic IS 'The monotonic clock of the system at this reading.';
COMMENT ON COLUMN idem.clock.jumped_at IS
    'The reading of ran when the last jump of the wall clock was detected.';
COMMENT ON COLUMN idem.clock.jumped_by IS 'The size of that jump of the wall clock.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.clock
    FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.clock ENABLE ALWAYS TRIGGER replace_row;
INSERT INTO idem.clock (id) VALUES (1);
SELECT pg_catalog.pg_extension_config_dump('idem.clock', '');
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_clock

-- The outbox: the effects. It is insert-only and has a ring of slices of its own.

CREATE SEQUENCE idem.outbox_seq;

DO $$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 3 LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TABLE idem.outbox_%1$s (
                seq                bigint      NOT NULL,
                tx                 xid8        NOT NULL,
                recorded_at        timestamptz NOT NULL,
                deliver_after      timestamptz,
                partition_hash     int4        NOT NULL,
                ordinal            int4        NOT NULL,
                source_destination int4,
                replay             boolean     NOT NULL,
                source_key         uuid,
                message_id         uuid        NOT NULL,
                topic              text        NOT NULL,
                key                text,
                type               text,
                payload            bytea       NOT NULL,
                content_type       text        NOT NULL,
                headers            jsonb,
                traceparent        text,
                CONSTRAINT outbox_%1$s_pkey PRIMARY KEY (seq)
            ) WITH (autovacuum_vacuum_insert_threshold = -1);
            CREATE INDEX outbox_%1$s_tx ON idem.outbox_%1$s (tx, seq);
            CREATE INDEX outbox_%1$s_source ON idem.outbox_%1$s (source_key, source_destination)
                WHERE source_key IS NOT NULL;
            COMMENT ON TABLE idem.outbox_%1$s IS
                'A slice of the outbox: effects. Written by idem_record_effects and idem_send, '
                'read by relays.';
            COMMENT ON COLUMN idem.outbox_%1$s.recorded_at IS
                'The time of the claim; for idem_send, the start of the transaction.';
            $ddl$, slice);
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format('idem.outbox_%s', slice)::pg_catalog.regclass, '');
    END LOOP;
END
$$;

CREATE VIEW idem.outbox_row AS
    SELECT * FROM idem.outbox_0
    UNION ALL
    SELECT * FROM idem.outbox_1
    UNION ALL
    SELECT * FROM idem.outbox_2
    UNION ALL
    SELECT * FROM idem.outbox_3;
COMMENT ON VIEW idem.outbox_row IS 'All slices of the outbox as one relation, for the relays.';

SELECT pg_catalog.pg_extension_config_dump('idem.outbox_seq', '');
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_outbox

-- The types of the results.

CREATE TYPE idem_outcome AS ENUM ('claimed', 'duplicate', 'in_progress', 'mismatch', 'expired');
COMMENT ON TYPE idem_outcome IS
    'The result of a claim. claimed: process the message. duplicate: the message was processed. '
    'in_progress: another process is processing it. mismatch: the message was processed with '
    'another fingerprint. expired: the message is too old to be distinguished from a duplicate.';

CREATE TYPE idem_effect AS (
    message_id    uuid,
    ordinal       int4,
    topic         text,
    key           text,
    type          text,
    payload       bytea,
    content_type  text,
    headers       jsonb,
    traceparent   text,
    deliver_after timestamptz,
    recorded_at   timestamptz
);
COMMENT ON TYPE idem_effect IS
    'An outgoing message as it was recorded. A JSON payload is stored as its UTF-8 text.';
COMMENT ON COLUMN idem_effect.recorded_at IS 'The time of the claim of the message.';

CREATE TYPE idem_lease_outcome AS ENUM
    ('acquired', 'duplicate', 'in_progress', 'exhausted', 'dead');
COMMENT ON TYPE idem_lease_outcome IS
    'The result of idem_acquire. acquired: process the message. duplicate: the message was '
    'processed. in_progress: another process holds the lease, or the message waits for a retry. '
    'exhausted: the message is leased, but no attempt is left: move it to the dead letters with '
    'idem_bury. dead: the message is a dead letter.';

CREATE TYPE idem_call_state AS ENUM ('new', 'unknown', 'done', 'failed');
COMMENT ON TYPE idem_call_state IS
    'What is known about an external call. new: send the request. unknown: an earlier attempt '
    'began and its result was never recorded. done: the call succeeded, and its response is '
    'recorded. failed: the call failed for good.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_types

-- Pending messages: identities that are not done. A message is ready, leased, waiting for a retry,
-- or dead.
--
-- Each identity has one narrow row, in one of two tables that are used in rotation. Rows are
-- updated, and the claim that completes a message deletes its row, so the table collects dead row
-- versions. While a transaction holds an old snapshot, VACUUM cannot remove them. So
-- idem.rotate_pending copies the live rows into the other table, which then becomes the current
-- table. Payloads are in idem.payload_N, which is insert-only.

CREATE SEQUENCE idem.pending_seq;
CREATE SEQUENCE idem.lease_token_seq;

DO $$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 1 LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TABLE idem.pending_%1$s (
                seq           bigint      NOT NULL,
                token         bigint      NOT NULL DEFAULT 0,
                due_at        timestamptz NOT NULL,
                received_at   timestamptz NOT NULL,
                key           uuid        NOT NULL,
                destination   int4        NOT NULL,
                attempt       int4        NOT NULL DEFAULT 0,
                payload_slice int2,
                state         "char"      NOT NULL,
                stops_claims  boolean     NOT NULL DEFAULT false,
                id            text,
                order_key     text COLLATE pg_catalog."C",
                errors        jsonb       NOT NULL DEFAULT '[]',
                CONSTRAINT pending_%1$s_pkey PRIMARY KEY (key, destination),
                CONSTRAINT pending_%1$s_has_a_state CHECK (state IN ('r', 'l', 'w', 'd')),
                CONSTRAINT pending_%1$s_leased_by_a_token CHECK (state <> 'l' OR token > 0),
                CONSTRAINT pending_%1$s_only_leased_stops_claims
                    CHECK (NOT stops_claims OR state = 'l'),
                CONSTRAINT pending_%1$s_leased_or_waiting_was_attempted
                    CHECK (state NOT IN ('l', 'w') OR attempt > 0),
                CONSTRAINT pending_%1$s_only_dead_is_never_due
                    CHECK ((state = 'd') = (due_at = 'infinity')),
                CONSTRAINT pending_%1$s_dead_has_no_payload
                    CHECK (state <> 'd' OR payload_slice IS NULL),
                CONSTRAINT pending_%1$s_is_noted CHECK (idem.note_pending(seq))
            );
            CREATE INDEX pending_%1$s_due ON idem.pending_%1$s (destination, due_at, seq);
            CREATE INDEX pending_%1$s_order
                ON idem.pending_%1$s (destination, order_key, state, seq);
            COMMENT ON TABLE  idem.pending_%1$s IS
                'Pending messages. Only the rows of the current table of idem.pending_rotation '
                'are valid.';
            COMMENT ON COLUMN idem.pending_%1$s.seq IS
                'The order of arrival; also the primary key of the payload.';
            COMMENT ON COLUMN idem.pending_%1$s.token IS
                'The fencing token of the newest lease; 0: never leased.';
            COMMENT ON COLUMN idem.pending_%1$s.due_at IS
                'The message is not leased again before this time: the end of the lease, the next '
                'attempt, or deliver_after. infinity: dead.';
            COMMENT ON COLUMN idem.pending_%1$s.attempt IS
                'The number of attempts that have begun. An attempt counts when its lease begins, '
                'so a crash of the consumer counts.';
            COMMENT ON COLUMN idem.pending_%1$s.payload_slice IS
                'The number N of the table idem.payload_N that holds the payload. Null: the '
                'payload is at the broker, or in idem.dead_letter if the state is d.';
            COMMENT ON COLUMN idem.pending_%1$s.state IS
                'r: ready. l: leased until due_at. w: waiting for the next attempt until due_at. '
                'd: dead.';
            COMMENT ON COLUMN idem.pending_%1$s.stops_claims IS
                'Whether the lease is one of idem_acquire, which stops claims until due_at. A '
                'message can be received during such a lease.';
            COMMENT ON COLUMN idem.pending_%1$s.errors IS
                'The newest errors, oldest first: [{"at": ..., "attempt": ..., "error": ...}].';
            $ddl$, slice);
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format('idem.pending_%s', slice)::pg_catalog.regclass, '');
    END LOOP;
END
$$;

CREATE TABLE idem.pending_rotation (
    id      int2   NOT NULL,
    current int2   NOT NULL,
    bytes   bigint NOT NULL DEFAULT 0,
    CONSTRAINT pending_rotation_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE  idem.pending_rotation IS
    'Which table of pending messages is the current one. A writer locks that table ROW EXCLUSIVE '
    'and then checks that it is still the current one.';
COMMENT ON COLUMN idem.pending_rotation.bytes IS
    'The size of the current table after the last rotation, in bytes.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.pending_rotation
    FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.pending_rotation ENABLE ALWAYS TRIGGER replace_row;
INSERT INTO idem.pending_rotation (id, current) VALUES (1, 0);

DO $$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 3 LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TABLE idem.payload_%1$s (
                seq          bigint NOT NULL,
                payload      bytea  NOT NULL,
                content_type text   NOT NULL,
                type         text,
                headers      jsonb,
                traceparent  text,
                CONSTRAINT payload_%1$s_pkey PRIMARY KEY (seq)
            ) WITH (autovacuum_vacuum_insert_threshold = -1);
            COMMENT ON TABLE idem.payload_%1$s IS
                'Payloads of received messages. Insert-only; truncated when no pending message '
                'refers to it.';
            $ddl$, slice);
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format('idem.payload_%s', slice)::pg_catalog.regclass, '');
    END LOOP;
END
$$;

CREATE TABLE idem.payload_rotation (
    id                int2          NOT NULL,
    current           int2          NOT NULL,
    rotations         bigint        NOT NULL DEFAULT 0,
    unused_since      timestamptz[] NOT NULL DEFAULT '{infinity,infinity,infinity,infinity}',
    looked_at         timestamptz   NOT NULL DEFAULT '-infinity',
    look_took         interval      NOT NULL DEFAULT '0',
    moved_key         uuid,
    moved_destination int4,
    CONSTRAINT payload_rotation_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE  idem.payload_rotation IS
    'Which slice of payloads stores new payloads. Readers use the slice that the pending message '
    'names.';
COMMENT ON COLUMN idem.payload_rotation.unused_since IS
    'The time since which no pending message refers to each slice, by slice number + 1, as far as '
    'maintenance has checked; infinity: a pending message can refer to it.';
COMMENT ON COLUMN idem.payload_rotation.looked_at IS
    'The time at which maintenance last checked which slices are in use.';
COMMENT ON COLUMN idem.payload_rotation.look_took IS
    'The duration of that check. After a check of more than 100 ms the next one follows after 100 '
    'times this duration.';
COMMENT ON COLUMN idem.payload_rotation.moved_key IS
    'The place up to which the payloads of the oldest slice have been copied, by the primary key '
    'of the pending messages.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.payload_rotation
    FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.payload_rotation ENABLE ALWAYS TRIGGER replace_row;
INSERT INTO idem.payload_rotation (id, current) VALUES (1, 0);

CREATE TABLE idem.dead_letter (
    seq          bigint      NOT NULL,
    died_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    received_at  timestamptz NOT NULL,
    key          uuid        NOT NULL,
    destination  int4        NOT NULL,
    attempt      int4        NOT NULL,
    id           text,
    order_key    text,
    type         text,
    payload      bytea       NOT NULL,
    content_type text        NOT NULL,
    headers      jsonb,
    traceparent  text,
    errors       jsonb       NOT NULL,
    CONSTRAINT dead_letter_pkey PRIMARY KEY (key, destination)
);
CREATE INDEX dead_letter_died ON idem.dead_letter (destination, died_at);
COMMENT ON TABLE idem.dead_letter IS
    'Messages that have no attempt left, with their errors: see the view idem.dead_letters, '
    'idem_requeue and idem_discard.';

CREATE TABLE idem.retry_policy (
    destination  int4     NOT NULL,
    max_attempts int4     NOT NULL,
    factor       float8   NOT NULL,
    jitter       float8   NOT NULL,
    base         interval NOT NULL,
    cap          interval NOT NULL,
    final_errors text[]   NOT NULL,
    CONSTRAINT retry_policy_pkey PRIMARY KEY (destination)
);
COMMENT ON TABLE  idem.retry_policy IS
    'When and how often a failed message is retried: see idem_configure_retries.';
COMMENT ON COLUMN idem.retry_policy.jitter IS 'The share of each back-off that is random, 0 to 1.';
COMMENT ON COLUMN idem.retry_policy.final_errors IS
    'LIKE patterns: a message is not retried after an error that matches one of them.';

SELECT pg_catalog.pg_extension_config_dump('idem.pending_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.lease_token_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.pending_rotation', '');
SELECT pg_catalog.pg_extension_config_dump('idem.payload_rotation', '');
SELECT pg_catalog.pg_extension_config_dump('idem.dead_letter', '');
SELECT pg_catalog.pg_extension_config_dump('idem.retry_policy', '');

CREATE VIEW idem.payload_row AS
    SELECT 0::int2 AS slice, b.* FROM idem.payload_0 b
    UNION ALL
    SELECT 1::int2, b.* FROM idem.payload_1 b
    UNION ALL
    SELECT 2::int2, b.* FROM idem.payload_2 b
    UNION ALL
    SELECT 3::int2, b.* FROM idem.payload_3 b;
COMMENT ON VIEW idem.payload_row IS 'All slices of payloads as one relation.';

CREATE TRIGGER publish AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idem.pending_rotation
    FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
ALTER TABLE idem.pending_rotation ENABLE ALWAYS TRIGGER publish;
-- Only a change of the current slice is published. Backends do not use the other columns, which are
-- for maintenance.
CREATE TRIGGER publish AFTER INSERT OR UPDATE OF current OR DELETE OR TRUNCATE
    ON idem.payload_rotation FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
ALTER TABLE idem.payload_rotation ENABLE ALWAYS TRIGGER publish;
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_pending

-- The journal: external calls, that is requests to something outside the database, which have
-- begun, finished or failed. The journal is insert-only and stored in the rings of the claims: an
-- entry is forgotten with the claim that it belongs to.

DO $$
DECLARE
    ring  text;
    slice int2;
BEGIN
    FOREACH ring IN ARRAY ARRAY['short', 'standard', 'long'] LOOP
        FOREACH slice IN ARRAY idem.slice_numbers(0::int2) LOOP
            EXECUTE pg_catalog.format($ddl$
                CREATE TABLE idem.call_%1$s_%2$s (
                    key         uuid        NOT NULL,
                    at          timestamptz NOT NULL,
                    destination int4        NOT NULL,
                    event       int4        NOT NULL,
                    kind        int2        NOT NULL,
                    step        text COLLATE pg_catalog."C" NOT NULL,
                    digest      bytea,
                    body        jsonb,
                    CONSTRAINT call_%1$s_%2$s_pkey PRIMARY KEY (key, destination, step, event)
                ) WITH (autovacuum_vacuum_insert_threshold = -1);
                COMMENT ON TABLE  idem.call_%1$s_%2$s IS
                    'A slice of the journal: external calls. Written and read by idem_begin_call '
                    'and related functions only.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.event IS
                    'The number of this event of the external call, from 0. Of two sessions that '
                    'record the same event at the same time, the primary key lets one write first.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.kind IS
                    '0: begun. 1: finished. 2: failed, and may be retried. 3: failed for good.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.digest IS
                    'SHA-256 of the request of the first attempt. Each event has it, because the '
                    'event that began the call may be forgotten first.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.body IS
                    'The response, or the error as a JSON string.';
                $ddl$, ring, slice);
            PERFORM pg_catalog.pg_extension_config_dump(
                pg_catalog.format('idem.call_%s_%s', ring, slice)::pg_catalog.regclass, '');
        END LOOP;
    END LOOP;
END
$$;
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_journal

-- Relays: the readers of the outbox that publish the effects, and their progress.
--
-- Progress is appended, never updated. The newest row of a (relay, partition) is its state, and its
-- pos is the fencing token of the batch that it leases. If one row were updated ten times a second,
-- readers would have to pass all its versions that the oldest snapshot keeps. With appended rows
-- the newest row is always the first that the index returns. Two tables are used in rotation.

CREATE SEQUENCE idem.relay_id_seq AS int4 START 2;
CREATE SEQUENCE idem.progress_pos_seq;

CREATE TABLE idem.relay (
    id              int4        NOT NULL DEFAULT pg_catalog.nextval('idem.relay_id_seq'),
    partitions      int4        NOT NULL DEFAULT 1,
    start_snapshot  pg_snapshot NOT NULL,
    start_floor     bigint      NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT pg_catalog.now(),
    dropped_at      timestamptz,
    restored_at     timestamptz,
    restored_at_xid xid8,
    name            text        NOT NULL,
    CONSTRAINT relay_pkey PRIMARY KEY (id),
    CONSTRAINT relay_has_partitions CHECK (partitions BETWEEN 1 AND 256)
);
CREATE UNIQUE INDEX relay_name_key ON idem.relay (name) WHERE dropped_at IS NULL;
COMMENT ON TABLE  idem.relay IS
    'The relays. Each relay reads every effect, and the outbox keeps an effect until every relay '
    'has acknowledged it.';
COMMENT ON COLUMN idem.relay.start_snapshot IS
    'The relay reads the effects of transactions that are not visible in this snapshot.';
COMMENT ON COLUMN idem.relay.start_floor IS
    'Transactions that got their id after start_snapshot have sequence numbers higher than this '
    'one.';
COMMENT ON COLUMN idem.relay.dropped_at IS
    'The time at which the relay was dropped. Only the relay with id 1, which CREATE EXTENSION '
    'creates, has it: its row is kept, so that a restore does not create the relay again.';
COMMENT ON COLUMN idem.relay.restored_at IS
    'The time at which a dump was restored into this table. Progress that is older was written by '
    'another database.';
COMMENT ON COLUMN idem.relay.restored_at_xid IS
    'The next transaction id of this cluster at that time. Restored progress that contains this '
    'id or a higher one got it from another cluster.';
CREATE FUNCTION idem.note_restore() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A new relay has created_at = now(). A row from a dump has an older created_at.
    IF NEW.created_at <> now() THEN
        NEW.restored_at := clock_timestamp();
        NEW.restored_at_xid := idem.next_xid();
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.note_restore() IS
    'Trigger function: stores the next transaction id of this cluster when a relay is restored '
    'from a dump.';
CREATE TRIGGER note_restore BEFORE INSERT ON idem.relay
    FOR EACH ROW EXECUTE FUNCTION idem.note_restore();
ALTER TABLE idem.relay ENABLE ALWAYS TRIGGER note_restore;
CREATE TRIGGER replace_row BEFORE INSERT ON idem.relay
    FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.relay ENABLE ALWAYS TRIGGER replace_row;

CREATE TABLE idem.relay_partition (
    relay     int4 NOT NULL,
    partition int4 NOT NULL,
    CONSTRAINT relay_partition_pkey PRIMARY KEY (relay, partition)
);
COMMENT ON TABLE idem.relay_partition IS
    'One row for each partition, never updated. Locking the row serializes the operations of a '
    'partition.';
CREATE FUNCTION idem.replace_partition_row() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM idem.relay_partition p WHERE p.relay = NEW.relay AND p.partition = NEW.partition;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.replace_partition_row() IS
    'Trigger function: deletes the row with the same key, so that pg_restore replaces the rows '
    'that CREATE EXTENSION inserted.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.relay_partition
    FOR EACH ROW EXECUTE FUNCTION idem.replace_partition_row();
ALTER TABLE idem.relay_partition ENABLE ALWAYS TRIGGER replace_row;

INSERT INTO idem.relay (id, name, start_snapshot, start_floor) VALUES (1, 'default', '1:1:', 0);
INSERT INTO idem.relay_partition (relay, partition) VALUES (1, 0);

DO $$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 1 LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TABLE idem.progress_%1$s (
                pos           bigint      NOT NULL
                                          DEFAULT pg_catalog.nextval('idem.progress_pos_seq'),
                relay         int4        NOT NULL,
                partition     int4        NOT NULL,
                leased_until  timestamptz,
                written_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
                seq_after     bigint      NOT NULL DEFAULT 0,
                seq_through   bigint,
                exhausted     boolean     NOT NULL DEFAULT false,
                deferring     boolean     NOT NULL DEFAULT false,
                from_delayed  boolean     NOT NULL DEFAULT false,
                floor_from    bigint      NOT NULL,
                floor_to      bigint,
                ceiling_to    bigint,
                snapshot_from pg_snapshot NOT NULL,
                snapshot_to   pg_snapshot,
                CONSTRAINT progress_%1$s_pkey PRIMARY KEY (relay, partition, pos)
            ) WITH (autovacuum_vacuum_insert_threshold = -1);
            COMMENT ON TABLE idem.progress_%1$s IS
                'The progress of each relay. The row with the highest pos is the state of a '
                'partition.';
            COMMENT ON COLUMN idem.progress_%1$s.leased_until IS
                'The end of the lease of the current batch; pos is its token. Null: no batch is '
                'leased.';
            COMMENT ON COLUMN idem.progress_%1$s.seq_after IS
                'Between the two snapshots every effect up to this seq is acknowledged.';
            COMMENT ON COLUMN idem.progress_%1$s.seq_through IS
                'The seq of the last effect of the leased batch.';
            COMMENT ON COLUMN idem.progress_%1$s.exhausted IS
                'True: the leased batch is the last one between the two snapshots.';
            COMMENT ON COLUMN idem.progress_%1$s.deferring IS
                'True: the leased batch contains effects with a deliver_after in the future. Its '
                'acknowledgement moves them to idem.delayed.';
            COMMENT ON COLUMN idem.progress_%1$s.from_delayed IS
                'True: the leased batch was read from idem.delayed. Its acknowledgement does not '
                'move the cursor.';
            COMMENT ON COLUMN idem.progress_%1$s.floor_from IS
                'Transactions that got their id after snapshot_from have sequence numbers higher '
                'than this one. A pair of snapshots covers floor_from < seq <= ceiling_to.';
            COMMENT ON COLUMN idem.progress_%1$s.floor_to IS
                'The floor_from of the next pair.';
            COMMENT ON COLUMN idem.progress_%1$s.snapshot_from IS
                'The older snapshot of the pair. The effects that it sees are acknowledged.';
            COMMENT ON COLUMN idem.progress_%1$s.snapshot_to IS
                'The newer snapshot of the pair. Null: no pair is open.';
            COMMENT ON COLUMN idem.progress_%1$s.written_at IS
                'While a batch is leased: the time at which its effects were chosen. An effect '
                'with a later deliver_after is not in the batch. Otherwise: the time at which the '
                'row was written.';
            COMMENT ON COLUMN idem.progress_%1$s.ceiling_to IS
                'No transaction that is visible in snapshot_to has a sequence number higher than '
                'this one.';
            $ddl$, slice);
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format('idem.progress_%s', slice)::pg_catalog.regclass, '');
    END LOOP;
END
$$;

-- Which of the two tables stores the next row. Readers read both, so this table is not dumped.
CREATE TABLE idem.progress_rotation (
    id      int2 NOT NULL DEFAULT 1,
    current int2 NOT NULL,
    CONSTRAINT progress_rotation_pkey PRIMARY KEY (id),
    CONSTRAINT progress_rotation_is_one_row CHECK (id = 1)
);
COMMENT ON TABLE idem.progress_rotation IS
    'Which of the two tables of progress is appended to: see idem.rotate_progress.';
INSERT INTO idem.progress_rotation (current) VALUES (0);

CREATE VIEW idem.progress AS
    SELECT * FROM idem.progress_0
    UNION ALL
    SELECT * FROM idem.progress_1;
COMMENT ON VIEW idem.progress IS 'The two tables of progress as one relation.';

CREATE FUNCTION idem.effect_bytes(payload bytea, headers jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN pg_catalog.octet_length(payload)
       OPERATOR(pg_catalog.+) COALESCE(pg_catalog.octet_length(headers::text), 0);
COMMENT ON FUNCTION idem.effect_bytes(bytea, jsonb) IS
    'Returns the number of bytes that an effect counts towards max_bytes of a batch: its payload '
    'and its headers. The other columns have small limits.';

-- Delayed effects are stored with all their columns, because their slice of the outbox may be
-- truncated. The primary key contains no generated column: PostgreSQL 18 rejects UPDATE and DELETE
-- of a table with such a key if a publication contains all tables.
CREATE TABLE idem.delayed (
    relay     int4        NOT NULL,
    partition int4        NOT NULL,
    due_at    timestamptz NOT NULL,
    token     bigint,
    effect    idem.outbox_row NOT NULL,
    seq       bigint      NOT NULL,
    bytes     integer     NOT NULL
              GENERATED ALWAYS AS (idem.effect_bytes((effect).payload, (effect).headers)) STORED,
    CONSTRAINT delayed_pkey PRIMARY KEY (relay, partition, due_at, seq),
    CONSTRAINT delayed_seq_is_of_effect CHECK (seq IS NOT DISTINCT FROM (effect).seq)
);
COMMENT ON TABLE  idem.delayed IS
    'Effects that wait for their deliver_after or are delivered again, for each relay.';
COMMENT ON COLUMN idem.delayed.token IS
    'The token of the batch that currently contains the effect.';

CREATE TABLE idem.parked_effect (
    relay     int4        NOT NULL,
    partition int4        NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    error     text        NOT NULL,
    effect    idem.outbox_row NOT NULL,
    seq       bigint      NOT NULL,
    CONSTRAINT parked_effect_pkey PRIMARY KEY (relay, seq),
    CONSTRAINT parked_effect_seq_is_of_effect CHECK (seq IS NOT DISTINCT FROM (effect).seq)
);
CREATE INDEX parked_effect_message_id ON idem.parked_effect (relay, ((effect).message_id));
COMMENT ON TABLE idem.parked_effect IS
    'Effects that a relay has parked, with the error: see idem_relay_park, and the view '
    'idem.parked, which shows them without their payloads.';

SELECT pg_catalog.pg_extension_config_dump('idem.relay_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.progress_pos_seq', '');
-- ORDER BY id restores the relay with id 1 first. It replaces the relay that CREATE EXTENSION has
-- inserted, before another relay with the same name is restored.
SELECT pg_catalog.pg_extension_config_dump('idem.relay', 'ORDER BY id');
SELECT pg_catalog.pg_extension_config_dump('idem.relay_partition', '');
SELECT pg_catalog.pg_extension_config_dump('idem.delayed', '');
SELECT pg_catalog.pg_extension_config_dump('idem.parked_effect', '');
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_relays

-- The errors of the maintenance.

CREATE TABLE idem.maintenance_error (
    since    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    step     text        NOT NULL,
    sqlstate text        NOT NULL,
    message  text        NOT NULL,
    CONSTRAINT maintenance_error_pkey PRIMARY KEY (step)
);
COMMENT ON TABLE  idem.maintenance_error IS
    'The maintenance steps that currently fail: see idem_health.';
COMMENT ON COLUMN idem.maintenance_error.since IS
    'The time since which the step has failed in every pass.';
COMMENT ON COLUMN idem.maintenance_error.message IS 'The last error of the step.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_maintenance

-- The kinds of roles and their privileges. PUBLIC has no privileges. A role gets EXECUTE on the
-- functions and SELECT on the views of its kinds, and no privilege on a table.

CREATE TABLE idem.kind_of_role (
    kind      text NOT NULL,
    may_call  text NOT NULL,
    CONSTRAINT kind_of_role_pkey PRIMARY KEY (kind, may_call)
);
COMMENT ON TABLE idem.kind_of_role IS
    'The functions of each kind of role, by name, with all overloads: idem_grant grants EXECUTE '
    'on them.';
INSERT INTO idem.kind_of_role (kind, may_call) VALUES
    ('consumer', 'idem_try_claim'), ('consumer', 'idem_try_claim_batch'),
    ('consumer', 'idem_try_claim_uuid_batch'), ('consumer', 'idem_claim'),
    ('consumer', 'idem_claim_in_block'), ('consumer', 'idem_is_claimed'),
    ('consumer', 'idem_forbid_commit'), ('consumer', 'idem_allow_commit'),
    ('consumer', 'idem_record_effects'), ('consumer', 'idem_try_record'),
    ('consumer', 'idem_effects'), ('consumer', 'idem_replay_effects'), ('consumer', 'idem_send'),
    ('consumer', 'idem_send_bytes'), ('consumer', 'idem_acquire'), ('consumer', 'idem_extend'),
    ('consumer', 'idem_complete'), ('consumer', 'idem_release'), ('consumer', 'idem_bury'),
    ('consumer', 'idem_reject'), ('consumer', 'idem_receive'), ('consumer', 'idem_receive_bytes'),
    ('consumer', 'idem_next'), ('consumer', 'idem_next_wait'), ('consumer', 'idem_begin_call'),
    ('consumer', 'idem_finish_call'), ('consumer', 'idem_fail_call'), ('consumer', 'idem_calls'),
    ('receiver', 'idem_receive'), ('receiver', 'idem_receive_bytes'),
    ('receiver', 'idem_is_claimed'),
    ('operator', 'idem_requeue'), ('operator', 'idem_requeue_all'), ('operator', 'idem_discard'),
    ('operator', 'idem_discard_all'), ('operator', 'idem_forward'),
    ('operator', 'idem_forward_all'), ('operator', 'idem_health'), ('operator', 'idem_is_claimed'),
    ('operator', 'idem_relay_unpark'), ('operator', 'idem_relay_unpark_all'),
    ('operator', 'idem_relay_discard'), ('operator', 'idem_relay_discard_all'),
    ('relay', 'idem_relay_next'), ('relay', 'idem_relay_ack'), ('relay', 'idem_relay_park'),
    ('relay', 'idem_relay_wait'), ('relay', 'idem_relay_extend'),
    ('relay', 'idem_relay_partitions'), ('relay', 'idem_hand_over'),
    ('monitor', 'idem_health'), ('monitor', 'idem_is_claimed'),
    ('monitor', 'idem_rotation_blockers'),
    ('admin', 'idem_forget'), ('admin', 'idem_configure'), ('admin', 'idem_set_retention'),
    ('admin', 'idem_grant'), ('admin', 'idem_revoke'), ('admin', 'idem_maintain'),
    ('admin', 'idem_create_relay'), ('admin', 'idem_drop_relay'), ('admin', 'idem_relay_unpark'),
    ('admin', 'idem_relay_unpark_all'), ('admin', 'idem_relay_discard'),
    ('admin', 'idem_relay_discard_all'), ('admin', 'idem_repair_relays'), ('admin', 'idem_health'),
    ('admin', 'idem_rotation_blockers'), ('admin', 'idem_configure_retries'),
    ('admin', 'idem_remove_destination'), ('admin', 'idem_requeue'), ('admin', 'idem_requeue_all'),
    ('admin', 'idem_discard'), ('admin', 'idem_discard_all'), ('admin', 'idem_forward'),
    ('admin', 'idem_forward_all');

CREATE TABLE idem.view_of_kind (
    kind      text NOT NULL,
    may_read  text NOT NULL,
    CONSTRAINT view_of_kind_pkey PRIMARY KEY (kind, may_read)
);
COMMENT ON TABLE idem.view_of_kind IS
    'The views of each kind of role: idem_grant grants SELECT on them. idem.dead_letters shows '
    'the payloads of messages.';
INSERT INTO idem.view_of_kind (kind, may_read) VALUES
    ('relay', 'parked'),
    ('operator', 'parked'), ('operator', 'leases'), ('operator', 'waiting_messages'),
    ('operator', 'dead_letters'),
    ('monitor', 'parked'), ('monitor', 'leases'), ('monitor', 'waiting_messages'),
    ('monitor', 'inbox'), ('monitor', 'outbox'), ('monitor', 'rings'), ('monitor', 'relays'),
    ('monitor', 'stats'), ('monitor', 'filters'),
    ('admin', 'parked'), ('admin', 'leases'), ('admin', 'waiting_messages'),
    ('admin', 'dead_letters'), ('admin', 'inbox'), ('admin', 'outbox'), ('admin', 'rings'),
    ('admin', 'relays'), ('admin', 'stats'), ('admin', 'filters');
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_roles

-- Reads and stores the clock of the rings.

-- The wall clock has jumped if it has moved by another amount than the monotonic clock, or if after
-- a restart it shows an earlier time than before. A difference of up to half a second does not
-- count, because time services correct that much at once.
CREATE FUNCTION idem.tick() RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c          idem.clock;
    same_run   boolean;
    now_wall   timestamptz;
    off        interval;
    jump       interval;
    ran_before interval;
BEGIN
    -- Lock the row before reading the clock, so that the time that another session has added is not
    -- added again.
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1 FOR UPDATE;
    ran_before := c.ran;
    same_run := c.server_started = pg_postmaster_start_time();
    c.ran := idem.ran();
    c.monotonic := idem.monotonic();
    now_wall := clock_timestamp();
    off := now_wall - c.ran - c.zero_at;
    jump := CASE WHEN same_run THEN (now_wall - c.read_at) - (c.ran - ran_before)
                 WHEN now_wall < c.read_at THEN now_wall - c.read_at
                 ELSE '0' END;
    IF off NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        c.zero_at := now_wall - c.ran;
        PERFORM idem.invalidate('idem.ring'::regclass);
    END IF;
    IF jump NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        c.jumped_at := c.ran;
        c.jumped_by := jump;
    END IF;
    UPDATE idem.clock x
       SET zero_at = c.zero_at,
           read_at = now_wall,
           server_started = pg_postmaster_start_time(),
           ran = c.ran,
           monotonic = c.monotonic,
           jumped_at = c.jumped_at,
           jumped_by = c.jumped_by
     WHERE x.id = 1;
    RETURN c.ran;
END
$$;
COMMENT ON FUNCTION idem.tick() IS
    'Stores the clock of the rings and returns the reading of ran. Later readings are never '
    'smaller.';

CREATE FUNCTION idem.keep_clock() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c idem.clock;
BEGIN
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1;
    -- A restart loses the time since the last stored reading, so a reading is stored every ten
    -- seconds. Readings are not stored more often, because each leaves a dead row version.
    IF c.server_started <> pg_postmaster_start_time() OR idem.ran() - c.ran >= '10 seconds'
       OR clock_timestamp() - idem.ran() - c.zero_at
          NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        PERFORM idem.tick();
    END IF;
END
$$;
COMMENT ON FUNCTION idem.keep_clock() IS
    'Maintenance step: stores the clock every ten seconds, after a restart, and when the wall '
    'clock has jumped.';

CREATE FUNCTION idem.period(ring idem.ring) RETURNS interval
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT (ring.retention OPERATOR(pg_catalog.-) pg_catalog.make_interval(months => m.months)
                OPERATOR(pg_catalog.+)
                pg_catalog.make_interval(days => m.months OPERATOR(pg_catalog.*) 31))
               OPERATOR(pg_catalog./)
               (pg_catalog.cardinality(ring.slices) OPERATOR(pg_catalog.-) 2)
          FROM (SELECT (12 OPERATOR(pg_catalog.*) EXTRACT(year FROM ring.retention)
                        OPERATOR(pg_catalog.+) EXTRACT(month FROM ring.retention))::integer)
               AS m (months));
COMMENT ON FUNCTION idem.period(idem.ring) IS
    'Returns the time for which a slice is current: the retention divided by the number of sealed '
    'slices, because these hold the retention. A month counts 31 days.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_clock

-- The rotation of the rings. Each execution of idem.rotate does at most one step. Its transaction
-- commits the step, and the state in idem.ring determines the next one, so a crash between two
-- steps loses nothing.
--
--   steady   -> opening    claims are written to current and next                (invalidation)
--   opening  -> emptying   after the fence no transaction writes to current only:
--                          the slices rotate                                     (invalidation)
--   emptying -> steady     after the fence no transaction reads the oldest slice: TRUNCATE
--
-- The trigger publish on idem.ring sends the invalidation when a step commits.
--
-- Maintainers lock idem.ring in a mode that conflicts with itself, so only one of them does a step
-- at a time. The lock is held until the invalidation of the step has been sent. A fence that
-- another maintainer created before that would miss a claimer with the old state.

CREATE FUNCTION idem.slice_table(ring text, slice integer) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.format('idem.%s_%s',
                         CASE WHEN ring OPERATOR(pg_catalog.=) 'outbox' THEN 'outbox'
                              ELSE 'inbox_' OPERATOR(pg_catalog.||) ring END,
                         slice)::pg_catalog.regclass;
COMMENT ON FUNCTION idem.slice_table(text, integer) IS 'Returns the table of a slice.';

CREATE FUNCTION idem.slice_tables(ring text, slice integer) RETURNS regclass[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN ARRAY[idem.slice_table(ring, slice)]
       OPERATOR(pg_catalog.||)
       CASE WHEN ring OPERATOR(pg_catalog.<>) 'outbox'
            THEN ARRAY[pg_catalog.format('idem.call_%s_%s', ring, slice)::pg_catalog.regclass] END;
COMMENT ON FUNCTION idem.slice_tables(text, integer) IS
    'Returns the tables that are truncated with a slice: a slice of the inbox and the slice of '
    'the journal that belongs to it.';

-- Looks for effects of transactions that the older snapshot of the cursor does not see. The result
-- contains every relay that still needs an effect of the slice. It can also contain a relay that
-- has acknowledged these effects but not yet its whole pair of snapshots.
CREATE FUNCTION idem.relays_holding(slice integer) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    part    record;
    p       idem.progress;
    holds   boolean;
    holders text[] := '{}';
BEGIN
    FOR part IN
        SELECT r AS relay, rp.partition
          FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- A cursor that is ahead of this cluster does not show what is acknowledged, so its relay
        -- is always included: see idem_repair_relays.
        EXECUTE format('SELECT $5 OR EXISTS (SELECT 1 FROM %1$s o
                                              WHERE o.tx >= $1 AND o.partition_hash %% $3 = $4)
                                  OR EXISTS (SELECT 1 FROM unnest($2) x JOIN %1$s o ON o.tx = x
                                              WHERE o.partition_hash %% $3 = $4)',
                       idem.slice_table('outbox', slice))
          INTO holds
         USING pg_snapshot_xmax(p.snapshot_from), ARRAY(SELECT pg_snapshot_xip(p.snapshot_from)),
               (part.relay).partitions, part.partition, idem.lies_ahead(p);
        IF holds AND NOT (part.relay).name = ANY (holders) THEN
            holders := holders || (part.relay).name;
        END IF;
    END LOOP;
    RETURN holders;
END
$$;
COMMENT ON FUNCTION idem.relays_holding(integer) IS
    'Returns the names of the relays that may not have acknowledged all effects in a slice of the '
    'outbox.';

CREATE FUNCTION idem.is_due(ring idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN idem.ran() >= ring.rotated_at + idem.period(ring);
END
$$;
COMMENT ON FUNCTION idem.is_due(idem.ring) IS
    'Returns whether the last rotation of a ring is at least one period ago.';

-- A duplicate reads the effects of its claim. So the newest effect in the oldest slice of the
-- outbox must be older than every claim that can still be found. A slice of the inbox takes claims
-- from the time `opened`, which can be long before `started`, so compare with `opened`.
CREATE FUNCTION idem.outbox_may_rotate(outbox idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    oldest    integer := outbox.slices[3];
    sealed_at interval := outbox.started[outbox.slices[4] + 1];
BEGIN
    RETURN idem.is_due(outbox)
       AND NOT EXISTS (SELECT 1 FROM idem.ring r
                        WHERE r.name <> 'outbox'
                          AND r.opened[r.slices[3] + 1] < sealed_at)
       AND cardinality(idem.relays_holding(oldest)) = 0;
END
$$;
COMMENT ON FUNCTION idem.outbox_may_rotate(idem.ring) IS
    'Returns whether every relay has acknowledged the oldest slice of the outbox, and the slice '
    'is older than every claim.';

-- The clock is read here, after the fence has passed, because until then some transactions wrote
-- their claims to current only. Every claim that is made after this reading is in next.
CREATE FUNCTION idem.rotate_slices(ring idem.ring) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now_ran interval := idem.tick();
BEGIN
    UPDATE idem.ring r
       SET slices = r.slices[2:] || r.slices[1],
           opening = false,
           emptying = true,
           started[r.slices[2] + 1] = now_ran,
           -- r has the values before this UPDATE. The slice r.slices[4] becomes the oldest sealed
           -- slice. The first rotations remove slices that were never used, so every claim is still
           -- found. A ring that got more slices by an upgrade may have removed claims after fewer
           -- rotations, so the column is kept.
           remembers_since = greatest(r.remembers_since,
                                      CASE WHEN r.rotations >= cardinality(r.slices) - 2
                                           THEN r.started[r.slices[4] + 1] END),
           rotated_at = now_ran,
           rotations = r.rotations + 1
     WHERE r.id = (rotate_slices.ring).id;
END
$$;
COMMENT ON FUNCTION idem.rotate_slices(idem.ring) IS
    'Rotates the slices of a ring: current becomes sealed, next becomes current.';

CREATE FUNCTION idem.rotate(ring_name text, wait boolean) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
AS $$
DECLARE
    r             idem.ring;
    oldest_tables regclass[];
BEGIN
    -- Check without a lock first, so that a pass with nothing to do disturbs no session.
    SELECT * INTO r FROM idem.ring x WHERE x.name = ring_name;
    IF NOT (r.opening OR r.emptying OR idem.is_due(r)) THEN
        RETURN 'idle';
    END IF;
    LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT * INTO r FROM idem.ring x WHERE x.name = ring_name;

    IF r.emptying THEN
        -- The time is part of the name, because the number of rotations is set back when the state
        -- of a dump is restored into this database.
        IF NOT idem.fence(format('%s emptying %s %s', r.name, r.rotations, r.rotated_at), wait) THEN
            RETURN 'waiting';
        END IF;
        oldest_tables := idem.slice_tables(r.name, r.slices[2]);
        -- If the first lock is not granted soon, give up and retry later: other sessions queue
        -- behind the request. While the step holds this lock, it waits for no other lock.
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', oldest_tables[1]);
        IF cardinality(oldest_tables) > 1 THEN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', oldest_tables[2]);
        END IF;
        -- A relay that reads from the oldest effect may have been created since the slices rotated.
        -- Check this under the lock: if a relay is created between the check and the lock, it can
        -- read a part of the slice, and the TRUNCATE removes the rest.
        IF r.name = 'outbox' AND cardinality(idem.relays_holding(r.slices[2])) > 0 THEN
            RETURN 'blocked';
        END IF;
        EXECUTE format('TRUNCATE %s', array_to_string(oldest_tables, ', '));
        UPDATE idem.ring x SET emptying = false WHERE x.id = r.id;
        RETURN 'emptied';
    ELSIF r.opening THEN
        IF NOT idem.fence(format('%s opening %s %s', r.name, r.rotations,
                                 r.opened[r.slices[2] + 1]), wait) THEN
            RETURN 'waiting';
        END IF;
        PERFORM idem.rotate_slices(r);
        RETURN 'rotated';
    ELSIF r.name = 'outbox' THEN
        -- Effects are looked up in all slices, so the outbox has no opening step.
        IF NOT idem.outbox_may_rotate(r) THEN
            RETURN 'idle';
        END IF;
        PERFORM idem.rotate_slices(r);
        RETURN 'rotated';
    ELSIF idem.is_due(r) THEN
        UPDATE idem.ring x
           SET opening = true, opened[x.slices[2] + 1] = idem.tick()
         WHERE x.id = r.id;
        RETURN 'opened';
    END IF;
    RETURN 'idle';
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN 'locked';
END
$$;
COMMENT ON FUNCTION idem.rotate(text, boolean) IS
    'Does one step of the rotation of a ring, and returns it: opened, rotated or emptied. '
    'Otherwise returns why there was no step: idle (not due), waiting (for the fence), locked (a '
    'session reads the slice, or another maintainer is running), blocked (by a relay). wait: wait '
    'for the fence, as idem.fence does.';

CREATE FUNCTION idem.lock_out_claims() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
    -- This lock conflicts with the lock of every claim, and with itself, so only one transaction at
    -- a time configures or removes destinations.
    LOCK TABLE idem.ring IN SHARE ROW EXCLUSIVE MODE;
EXCEPTION
    WHEN lock_not_available THEN
        RAISE EXCEPTION 'transactions with claims, or a maintenance step, have not ended within '
                        '2 seconds'
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Try again, or find the long transaction in pg_stat_activity. New claims '
                         'wait behind this function, so it does not wait longer.';
END
$$;
COMMENT ON FUNCTION idem.lock_out_claims() IS
    'Prevents claims of other transactions until the end of the transaction. Error: 55P03.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_rotation

-- The rotation of the pending messages. Updated and deleted rows leave dead versions, and a
-- transaction with an old snapshot keeps VACUUM from removing them. A rotation copies the live rows
-- into the other table and makes it the current table.
--
-- A rotation is short: it runs only when the table is large and its live rows are few. A claim
-- waits at most 50 ms for the rotation to begin, and then until it commits. The rotation does not
-- wait for the lock of the other table. A maintainer first locks idem.pending_rotation, and gives
-- up if another maintainer holds this lock. Otherwise two maintainers that have read a table could
-- both wait for its lock, which is a deadlock.

CREATE FUNCTION idem.pending_table(table_number integer) RETURNS regclass
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN table_number = 0 THEN 'idem.pending_0'::pg_catalog.regclass
            ELSE 'idem.pending_1'::pg_catalog.regclass END;
COMMENT ON FUNCTION idem.pending_table(integer) IS
    'Returns one of the two tables of pending messages, 0 or 1.';

-- A table of up to 4 MB stays in memory and is not large. A larger table must have three times its
-- size after the last rotation, so that rotations are rare while many messages are pending.
CREATE FUNCTION idem.pending_is_large(rotation idem.pending_rotation) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.pg_relation_size(idem.pending_table((rotation).current))
       OPERATOR(pg_catalog.>) greatest(4 OPERATOR(pg_catalog.*) 1024 OPERATOR(pg_catalog.*) 1024,
                                       3 OPERATOR(pg_catalog.*) (rotation).bytes);
COMMENT ON FUNCTION idem.pending_is_large(idem.pending_rotation) IS
    'Returns whether the current table is large enough for a rotation.';

-- Few means at most 2,000 rows and 2 MB. The copy takes about 10 microseconds for each row with its
-- entries in three indexes, so the tables are locked for about 20 ms.
CREATE FUNCTION idem.pending_rows_are_few(table_number integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    at_most    constant integer := 2000;
    most_bytes constant integer := 2 * 1024 * 1024;
    live       integer;
    bytes      bigint;
BEGIN
    IF table_number = 0 THEN
        SELECT count(*), sum(200 + pg_column_size(p.errors)) INTO live, bytes
          FROM (SELECT x.errors FROM idem.pending_0 x LIMIT at_most + 1) p;
    ELSE
        SELECT count(*), sum(200 + pg_column_size(p.errors)) INTO live, bytes
          FROM (SELECT x.errors FROM idem.pending_1 x LIMIT at_most + 1) p;
    END IF;
    RETURN live <= at_most AND coalesce(bytes, 0) <= most_bytes;
END
$$;
COMMENT ON FUNCTION idem.pending_rows_are_few(integer) IS
    'Returns whether the live rows of a table of pending messages are few enough for a rotation.';

CREATE FUNCTION idem.rotate_pending() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET jit = off
AS $$
DECLARE
    rotation idem.pending_rotation;
    next     integer;
BEGIN
    LOCK TABLE idem.pending_rotation IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    SELECT * INTO rotation FROM idem.pending_rotation r WHERE r.id = 1;
    IF NOT idem.pending_is_large(rotation) OR NOT idem.pending_rows_are_few(rotation.current) THEN
        RETURN idem.note_no_pending(rotation);
    END IF;
    next := 1 - rotation.current;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', idem.pending_table(rotation.current));
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', idem.pending_table(next));
    -- Check again, because new rows may have been committed before the locks were granted.
    IF NOT idem.pending_rows_are_few(rotation.current) THEN
        RETURN false;
    END IF;
    -- The other table still has the rows from before the previous rotation, and the present table
    -- keeps its rows until the next one: TRUNCATE hides rows from older snapshots, and a dump that
    -- began before must find the pending messages in one of the two tables.
    EXECUTE format('TRUNCATE %s', idem.pending_table(next));
    -- Do not copy a row of a broker's message that has been due for longer than the longest
    -- retention. A claim of that age is forgotten too.
    EXECUTE format('INSERT INTO %s SELECT p.* FROM %s p '
                   'WHERE p.payload_slice IS NOT NULL OR p.due_at >= $1',
                   idem.pending_table(next), idem.pending_table(rotation.current))
      USING clock_timestamp() - (SELECT max(r.retention) FROM idem.ring r WHERE r.name <> 'outbox');
    UPDATE idem.pending_rotation r
       SET current = next, bytes = pg_relation_size(idem.pending_table(next))
     WHERE r.id = 1;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.rotate_pending() IS
    'Maintenance step: copies the live rows into the other table of pending messages and makes it '
    'the current one. Returns false when the table is small, its live rows are many, or a lock '
    'was not available.';

-- While no message is pending, claims skip the look-up: see extension/src/pending/presence.rs. To
-- set the note to none, the maintainer needs the same locks as for a rotation, and claims wait for
-- them. It takes these locks rarely: only in a pass after one that found no pending message, if no
-- message was written in between.
CREATE FUNCTION idem.note_no_pending(rotation idem.pending_rotation) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET jit = off
AS $$
BEGIN
    IF idem.pending_presence() = 'none' OR idem.has_pending(rotation.current) THEN
        RETURN false;
    ELSIF idem.pending_presence() = 'some' THEN
        PERFORM idem.set_pending_presence('quiet');
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', idem.pending_table(rotation.current));
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT',
                   idem.pending_table(1 - rotation.current));
    IF NOT idem.has_pending(rotation.current) THEN
        PERFORM idem.set_pending_presence('none');
    END IF;
    RETURN false;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.note_no_pending(idem.pending_rotation) IS
    'Stores in shared memory that no message is pending, if none is. Always returns false, '
    'because this is not a step of a rotation.';

CREATE FUNCTION idem.has_pending(table_number integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    IF table_number = 0 THEN
        RETURN EXISTS (SELECT FROM idem.pending_0);
    END IF;
    RETURN EXISTS (SELECT FROM idem.pending_1);
END
$$;
COMMENT ON FUNCTION idem.has_pending(integer) IS
    'Returns whether a table of pending messages has a live row.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_rotate_pending

-- Payloads of received messages are insert-only, in four slices that are used in rotation. A slice
-- that no pending message refers to is truncated. Before the rotation reaches a slice that still
-- holds payloads, these payloads are copied to the current slice.
--
-- Each execution of idem.rotate_payloads does at most one short step. No step waits for a lock that
-- a claimer holds. With wait, the check for unused slices waits at its fence, if no other step is
-- possible.

CREATE FUNCTION idem.payload_table(slice integer) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.format('idem.payload_%s', slice)::pg_catalog.regclass;
COMMENT ON FUNCTION idem.payload_table(integer) IS 'Returns the table of a slice of payloads.';

-- The size includes TOAST, which stores large payloads. The size of an empty slice is zero.
CREATE FUNCTION idem.payload_bytes(slice integer) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT pg_catalog.pg_relation_size(c.oid)
               OPERATOR(pg_catalog.+) pg_catalog.pg_relation_size(c.reltoastrelid)
          FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) idem.payload_table(slice));
COMMENT ON FUNCTION idem.payload_bytes(integer) IS
    'Returns the size of a slice of payloads without its indexes, in bytes.';

CREATE FUNCTION idem.rotate_payloads(
    least_bytes bigint   DEFAULT 33554432,
    quiet_time  interval DEFAULT '10 seconds',
    wait        boolean  DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET jit = off
AS $$
DECLARE
    r       idem.payload_rotation;
    sizes   bigint[] := ARRAY(SELECT idem.payload_bytes(s) FROM generate_series(0, 3) s
                               ORDER BY s);
    total   bigint := sizes[1] + sizes[2] + sizes[3] + sizes[4];
    next    integer;
    is_full boolean;
BEGIN
    SELECT * INTO r FROM idem.payload_rotation x WHERE x.id = 1;
    -- Do nothing if only the current slice has payloads and it is small: no slice can be emptied,
    -- and no rotation is needed.
    IF total = sizes[r.current + 1] AND total < least_bytes THEN
        RETURN false;
    END IF;
    -- This lock serializes maintainers. It does not block sessions that read or write the table.
    LOCK TABLE idem.payload_rotation IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    SELECT * INTO r FROM idem.payload_rotation x WHERE x.id = 1;
    IF idem.empty_a_payload_slice(r, sizes, quiet_time) THEN
        RETURN true;
    END IF;
    -- The current slice must have at least a quarter of the total size, so that a large backlog is
    -- copied rarely.
    next := (r.current + 1) % 4;
    is_full := sizes[r.current + 1] >= greatest(least_bytes, total / 4);
    IF is_full AND sizes[next + 1] = 0 THEN
        UPDATE idem.payload_rotation x
           SET current = next,
               rotations = x.rotations + 1,
               unused_since[next + 1] = 'infinity',
               moved_key = NULL,
               moved_destination = NULL
         WHERE x.id = 1;
        RETURN true;
    END IF;
    IF idem.look_for_unused_payloads(r, sizes, quiet_time, false)
       OR (is_full AND idem.move_payloads(r, next)) THEN
        RETURN true;
    END IF;
    RETURN wait AND idem.look_for_unused_payloads(r, sizes, quiet_time, true);
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.rotate_payloads(bigint, interval, boolean) IS
    'Maintenance step: does one step for the slices of payloads: records that a slice is unused, '
    'truncates it, copies payloads, or rotates. least_bytes: the size of the current slice from '
    'which it rotates. quiet_time: the time between the check that a slice is unused and its '
    'TRUNCATE, and between two checks. wait: wait for the fence, as idem.fence does. Returns true '
    'if a step was done.';

-- The TRUNCATE follows some time after the slice became unused: TRUNCATE hides rows from older
-- snapshots, and a dump that has begun needs the time to lock the tables that it reads. The step
-- also ends if the slice is in use again, because the next check may wait at a fence, and must not
-- do so while this lock is held.
CREATE FUNCTION idem.empty_a_payload_slice(
    r          idem.payload_rotation,
    sizes      bigint[],
    quiet_time interval
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 3 LOOP
        IF slice <> r.current AND sizes[slice + 1] > 0
           AND r.unused_since[slice + 1] + quiet_time <= clock_timestamp() THEN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', idem.payload_table(slice));
            IF EXISTS (SELECT FROM idem.pending p WHERE p.payload_slice = slice) THEN
                UPDATE idem.payload_rotation x
                   SET unused_since[slice + 1] = 'infinity'
                 WHERE x.id = 1;
                RETURN true;
            END IF;
            EXECUTE format('TRUNCATE %s', idem.payload_table(slice));
            UPDATE idem.payload_rotation x SET unused_since[slice + 1] = 'infinity' WHERE x.id = 1;
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END
$$;
COMMENT ON FUNCTION idem.empty_a_payload_slice(idem.payload_rotation, bigint[], interval) IS
    'Truncates one slice of payloads that no pending message has needed for at least the interval '
    'quiet_time, or records that the slice is in use again. Returns false if there is no such '
    'slice.';

-- The check reads every pending row. A check that takes long is repeated so rarely that checks use
-- at most a hundredth of the time. A receiver may still write to the slice that was current before
-- the last rotation, so the check begins only after a fence: every transaction that could use that
-- slice has then ended. The name of the fence has no time: it passes too early if a restored dump
-- sets the number of rotations back. Then nothing is lost, because the TRUNCATE checks again under
-- its lock.
CREATE FUNCTION idem.look_for_unused_payloads(
    r          idem.payload_rotation,
    sizes      bigint[],
    quiet_time interval,
    wait       boolean
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    began  timestamptz := clock_timestamp();
    in_use int2[];
    unused timestamptz[];
BEGIN
    IF began > r.looked_at
       AND began < (r.looked_at + CASE WHEN r.look_took > '100 milliseconds' THEN 100 * r.look_took
                                       ELSE quiet_time END) THEN
        RETURN false;
    ELSIF NOT EXISTS (SELECT FROM generate_series(0, 3) s
                       WHERE s <> r.current AND sizes[s + 1] > 0
                         AND r.unused_since[s + 1] = 'infinity') THEN
        RETURN false;
    ELSIF NOT idem.fence('payloads rotated ' || r.rotations, wait) THEN
        RETURN false;
    END IF;
    began := clock_timestamp();  -- the wait is not part of the check
    SELECT array_agg(DISTINCT p.payload_slice) INTO in_use
      FROM idem.pending p WHERE p.payload_slice IS NOT NULL;
    SELECT array_agg(CASE WHEN s = r.current OR sizes[s + 1] = 0
                               OR s = ANY (coalesce(in_use, '{}')) THEN 'infinity'
                          ELSE least(r.unused_since[s + 1], clock_timestamp()) END ORDER BY s)
      INTO unused FROM generate_series(0, 3) s;
    UPDATE idem.payload_rotation x
       SET looked_at = clock_timestamp(),
           look_took = clock_timestamp() - began,
           unused_since = unused
     WHERE x.id = 1;
    RETURN unused <> r.unused_since;
END
$$;
COMMENT ON FUNCTION idem.look_for_unused_payloads(
    idem.payload_rotation, bigint[], interval, boolean
) IS
    'Records which slices of payloads no pending message refers to; returns whether that changed.';

-- The copy reads the pending messages by their primary key and stores its position, so a large
-- backlog is read once. It skips a row that another transaction has locked, and copies the payload
-- of that row when it reads all rows again. A step copies 500 payloads or about 1 MB, because its
-- rows stay locked until it commits.
CREATE FUNCTION idem.move_payloads(r idem.payload_rotation, from_slice integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    pending regclass := idem.pending_table(idem.enter_pending());
    walked  idem.pending_0[];
    last    idem.pending_0;
BEGIN
    EXECUTE format($sql$
        SELECT array_agg(x.p ORDER BY (x.p).key, (x.p).destination) FROM (
            SELECT p,
                   sum(coalesce(pg_column_size(b.payload), 0)) OVER (ORDER BY p.key, p.destination)
                       - coalesce(pg_column_size(b.payload), 0) AS before
              FROM (SELECT * FROM %s p
                     WHERE $1 IS NULL OR (p.key, p.destination) > ($1, $2)
                     ORDER BY p.key, p.destination LIMIT 500) p
              LEFT JOIN %s b ON p.payload_slice = $3 AND b.seq = p.seq) x
         WHERE x.before < 1024 * 1024
        $sql$, pending, idem.payload_table(from_slice))
       INTO walked USING r.moved_key, r.moved_destination, from_slice::int2;
    last := walked[cardinality(walked)];
    UPDATE idem.payload_rotation x
       SET moved_key = last.key, moved_destination = last.destination
     WHERE x.id = 1;
    IF last.key IS NULL THEN
        RETURN false;  -- all rows are read; a later pass starts again
    END IF;
    EXECUTE format($sql$
        WITH held AS MATERIALIZED (
            SELECT p.key, p.destination, p.seq
              FROM unnest($1) w JOIN %1$s p ON p.key = w.key AND p.destination = w.destination
             WHERE w.payload_slice = $2 AND p.payload_slice = $2 AND p.seq = w.seq
               FOR UPDATE OF p SKIP LOCKED
        ), copied AS (
            INSERT INTO %2$s SELECT b.* FROM held h JOIN %3$s b ON b.seq = h.seq
        )
        UPDATE %1$s p SET payload_slice = $3
          FROM held h WHERE p.key = h.key AND p.destination = h.destination
        $sql$, pending, idem.payload_table(r.current), idem.payload_table(from_slice))
      USING walked, from_slice::int2, r.current;
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem.move_payloads(idem.payload_rotation, integer) IS
    'Copies some payloads that pending messages still refer to from a slice into the current '
    'slice; returns false when all rows are read.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_payloads

-- The progress of each relay. These functions lock first and then read the newest progress, so they
-- need READ COMMITTED.

CREATE FUNCTION idem.check_relay(relay_name text, partition integer) RETURNS idem.relay
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_relay idem.relay;
BEGIN
    IF relay_name IS NULL THEN
        RAISE EXCEPTION 'relay must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF partition IS NULL THEN
        RAISE EXCEPTION 'partition must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM idem.check_version();
    SELECT * INTO found_relay FROM idem.relay r WHERE r.name = relay_name AND r.dropped_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'relay "%" does not exist', relay_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it with idem_create_relay, or see the view idem.relays.';
    ELSIF partition < 0 OR partition >= found_relay.partitions THEN
        RAISE EXCEPTION 'relay "%" has no partition %', relay_name, partition
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('Its partitions are 0 to %s.', found_relay.partitions - 1);
    END IF;
    RETURN found_relay;
END
$$;
COMMENT ON FUNCTION idem.check_relay(text, integer) IS
    'Returns the relay with this name, and checks the number of the partition. Errors: 22004, '
    '22023 (no such partition), 42704 (no such relay), 58000.';

CREATE FUNCTION idem.check_isolation() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'cannot use a relay during recovery'
            USING ERRCODE = 'read_only_sql_transaction';
    ELSIF current_setting('transaction_isolation')
          NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'relays need READ COMMITTED, but this transaction is %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    ELSIF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'cannot use a relay in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_isolation() IS
    'Checks that the current transaction can write the progress of a relay. Errors: 25000 (not '
    'READ COMMITTED), 25006 (a standby or a read-only transaction).';

CREATE FUNCTION idem.lock_partition(relay integer, partition integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.check_isolation();
    PERFORM 1 FROM idem.relay_partition p
     WHERE p.relay = lock_partition.relay AND p.partition = lock_partition.partition
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the relay has been dropped' USING ERRCODE = 'undefined_object';
    END IF;
    -- Lock before the statement that reads the progress, so that the snapshot of that statement is
    -- newer than every rotation of the tables.
    LOCK TABLE idem.progress_0, idem.progress_1 IN ROW EXCLUSIVE MODE;
END
$$;
COMMENT ON FUNCTION idem.lock_partition(integer, integer) IS
    'Locks a partition until the end of the transaction, so that its operations are serialized. '
    'Errors: 25000, 25006, 42704.';

CREATE FUNCTION idem.progress_of(relay idem.relay, partition integer) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    newest idem.progress;
BEGIN
    SELECT p.* INTO newest FROM idem.progress p
     WHERE p.relay = progress_of.relay.id AND p.partition = progress_of.partition
     ORDER BY p.pos DESC LIMIT 1;
    IF NOT FOUND THEN
        newest.relay := progress_of.relay.id;
        newest.partition := progress_of.partition;
        newest.pos := 0;
        newest.seq_after := 0;
        newest.exhausted := false;
        newest.deferring := false;
        newest.from_delayed := false;
        newest.floor_from := progress_of.relay.start_floor;
        newest.snapshot_from := progress_of.relay.start_snapshot;
    END IF;
    RETURN newest;
END
$$;
COMMENT ON FUNCTION idem.progress_of(idem.relay, integer) IS
    'Returns the newest progress of a partition, or its start if there is none.';

CREATE FUNCTION idem.append_progress(p idem.progress) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.pos := nextval('idem.progress_pos_seq');
    IF (SELECT t.current = 0 FROM idem.progress_rotation t) THEN
        INSERT INTO idem.progress_0 VALUES (p.*);
    ELSE
        INSERT INTO idem.progress_1 VALUES (p.*);
    END IF;
    RETURN p.pos;
END
$$;
COMMENT ON FUNCTION idem.append_progress(idem.progress) IS
    'Appends a state of a partition and returns its pos, the token of a lease.';

CREATE FUNCTION idem.rotate_progress() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    now_in  integer;
    kept_in integer;
    newest  idem.progress[];
    bytes   bigint;
BEGIN
    -- Give up if another maintainer is running: two maintainers that have read the tables and wait
    -- for each other's lock would deadlock.
    LOCK TABLE idem.progress_rotation IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    SELECT t.current INTO now_in FROM idem.progress_rotation t;
    -- The size includes TOAST, where snapshots that list many transactions are stored. 8 MB is
    -- large enough to make rotations rare and small enough to stay in memory.
    bytes := pg_table_size(format('idem.progress_%s', now_in)::regclass);
    IF bytes < 8 * 1024 * 1024 THEN
        RETURN false;
    -- With very many partitions, the newest states alone are large. Rotate only if that makes the
    -- table much smaller.
    ELSIF bytes < 4 * (SELECT sum(200 + pg_column_size(p.snapshot_from)
                                  + coalesce(pg_column_size(p.snapshot_to), 0))
                         FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
                        CROSS JOIN LATERAL idem.progress_of(r, rp.partition) p) THEN
        RETURN false;
    END IF;
    -- Lock in the order in which a relay locks. While the first lock is held no relay can continue,
    -- so the other locks are granted at once or not at all.
    LOCK TABLE idem.progress_0 IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE idem.progress_1, idem.progress_rotation IN ACCESS EXCLUSIVE MODE NOWAIT;
    SELECT t.current INTO now_in FROM idem.progress_rotation t;
    kept_in := 1 - now_in;
    -- Relays wait for the locks above, so this query must be fast: it uses one index look-up for
    -- each partition.
    newest := ARRAY(
        SELECT n.p FROM idem.relay_partition rp CROSS JOIN LATERAL (
            SELECT p FROM idem.progress p
             WHERE p.relay = rp.relay AND p.partition = rp.partition
             ORDER BY p.pos DESC LIMIT 1) n);
    -- The other table still has the rows from before the previous rotation, and the present table
    -- keeps its rows until the next one: TRUNCATE hides rows from older snapshots, and a dump that
    -- began before must find the newest progress in one of the two tables.
    EXECUTE format('TRUNCATE idem.progress_%s', kept_in);
    EXECUTE format('INSERT INTO idem.progress_%s SELECT * FROM unnest($1)', kept_in) USING newest;
    UPDATE idem.progress_rotation SET current = kept_in;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.rotate_progress() IS
    'Maintenance step: truncates the older table of progress, copies the newest state of each '
    'partition into it, and makes it the current one. Returns false if the table is small, if the '
    'copy would not make it much smaller, or if a lock was not available.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_progress

-- Batches: the effects that the newer of two snapshots sees and the older one does not see, ordered
-- by seq (as in PgQ). If a transaction takes its sequence number early and commits late, its
-- effects are in a later batch and do not delay other effects.
--
-- Some functions below set enable_sort = off or enable_seqscan = off. A plan that still needs a
-- sort or a sequential scan then has a cost of 1e10, which would start JIT compilation. So these
-- functions set jit = off.

-- This function does not use a SELECT from the sequence, which can return a number that is up to 32
-- too high: nextval first writes the number for the WAL into the row and then the number that it
-- returns, and a SELECT reads the row without the lock of the page. If a relay used such a number
-- as its floor, it would never read the effects that later transactions record with the numbers
-- below it.
CREATE FUNCTION idem.last_outbox_seq() RETURNS bigint
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT coalesce(pg_catalog.pg_sequence_last_value('idem.outbox_seq'::pg_catalog.regclass), 0);
END;
COMMENT ON FUNCTION idem.last_outbox_seq() IS
    'Returns the last number of the outbox sequence, or 0 before the first. Each number taken '
    'before this function is at most the result, and each number taken after it is higher. The '
    'function reads the sequence under the lock of its page.';

-- In the names of arguments and columns, _from belongs to the older snapshot and _to to the newer
-- one. A pair of snapshots covers floor_from < seq <= ceiling_to, and floor_to is the floor of the
-- next pair.
--
-- The effects of new transactions are read in the order of seq, up to the limit. New transactions
-- had no transaction id at the older snapshot. A transaction gets its id before its first sequence
-- number, so all its numbers are above the floor.
--
-- The transactions that were still running at the older snapshot are few but can be of any size:
-- the effects of each of them are read in order through the index on (tx, seq).
--
-- The function has no SET clause, so that it is inlined into the calling statements and copies
-- nothing. The settings of the callers make their plans use the indexes whatever the statistics
-- are, because a slice can be empty when the plan is made and large when it runs. The arguments are
-- scalar values, because a field of a row would be extracted again for every effect.
CREATE FUNCTION idem.effects_between(
    seq_after     bigint,
    floor_from    bigint,
    ceiling_to    bigint,
    snapshot_from pg_snapshot,
    first_new     xid8,
    snapshot_to   pg_snapshot,
    partitions    integer,
    partition     integer,
    at_most       integer
) RETURNS SETOF idem.outbox_row
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT both_kinds.* FROM (
        (SELECT o.* FROM idem.outbox_row o
          WHERE o.seq > greatest(effects_between.seq_after, floor_from) AND o.seq <= ceiling_to
            AND o.tx >= first_new AND pg_visible_in_snapshot(o.tx, snapshot_to)
            AND (partitions = 1 OR o.partition_hash % partitions = effects_between.partition)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT o.* FROM pg_snapshot_xip(snapshot_from) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND pg_visible_in_snapshot(late.tx, snapshot_to)
               AND o.seq > effects_between.seq_after
               AND (partitions = 1 OR o.partition_hash % partitions = effects_between.partition)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
    ) both_kinds
    ORDER BY both_kinds.seq LIMIT at_most;
END;
COMMENT ON FUNCTION idem.effects_between(
    bigint, bigint, bigint, pg_snapshot, xid8, pg_snapshot, integer, integer, integer
) IS
    'Returns the next effects of a partition between the two snapshots of its progress, ordered '
    'by seq, at most at_most.';

-- After a crash the server assigns some ids again: those of transactions that had written nothing.
-- The snapshot of a cursor lists these ids as running, so the effects of the new transactions are
-- delivered. The first condition looks for ids below xmax that this cluster has not assigned and
-- that the snapshot does not list: later effects with these ids would be treated as delivered. The
-- second condition finds a restored cursor that was ahead when it was restored, even if this
-- cluster has assigned its ids since.
CREATE FUNCTION idem.lies_ahead(p idem.progress) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    past     pg_snapshot := p.snapshot_from;
    next_xid xid8 := idem.next_xid();
BEGIN
    RETURN pg_snapshot_xmax(past) > next_xid
           AND pg_snapshot_xmax(past)::text::bigint - next_xid::text::bigint
               > (SELECT count(*) FROM pg_snapshot_xip(past) x WHERE x >= next_xid)
        OR EXISTS (SELECT 1 FROM idem.relay r
                    WHERE r.id = p.relay AND pg_snapshot_xmax(past) > r.restored_at_xid
                      AND coalesce(p.written_at, '-infinity') <= r.restored_at);
END
$$;
COMMENT ON FUNCTION idem.lies_ahead(idem.progress) IS
    'Returns whether a cursor contains transaction ids that this cluster has not assigned yet, or '
    'had not assigned when the cursor was restored.';

CREATE FUNCTION idem.check_xids(p idem.progress) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF idem.lies_ahead(p)
       OR EXISTS (SELECT 1 FROM idem.outbox_row o
                   WHERE o.tx >= pg_snapshot_xmax(pg_current_snapshot())
                     AND o.tx IS DISTINCT FROM pg_current_xact_id_if_assigned()) THEN
        RAISE EXCEPTION 'transaction ids of the outbox or of a relay are ahead of this cluster'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = 'This happens after a restore into a younger cluster. New effects would '
                           'be treated as delivered.',
                  HINT = 'Stop producers and relays, then run SELECT '
                         '@extschema@.idem_repair_relays().';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_xids(idem.progress) IS
    'Checks that transaction ids did not go backwards, as they do after a restore into a younger '
    'cluster. Error: 55000.';

-- The xmax of a snapshot is one above the newest completed transaction. Transactions with higher
-- ids can be running. They may have taken their sequence numbers long ago, and the snapshot does
-- not list them. This function lists them too, and returns the next transaction id as xmax. It also
-- lists the current transaction, which its own snapshot omits, because a relay can still record
-- effects in the transaction in which it reads its batch.
CREATE FUNCTION idem.full_snapshot() RETURNS pg_snapshot
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    snapshot_now pg_snapshot := pg_current_snapshot();
    next_xid     xid8 := idem.next_xid();  -- read after the snapshot, so at least its xmax
    running      text;
BEGIN
    SELECT string_agg(x.id::text, ',' ORDER BY x.id) INTO running
      FROM (SELECT pg_snapshot_xip(snapshot_now)
            UNION ALL
            SELECT young::text::xid8
              FROM generate_series(pg_snapshot_xmax(snapshot_now)::text::bigint,
                                   next_xid::text::bigint - 1) young
            UNION
            SELECT pg_current_xact_id_if_assigned()) x (id);
    RETURN format('%s:%s:%s', pg_snapshot_xmin(snapshot_now), next_xid, running)::pg_snapshot;
END
$$;
COMMENT ON FUNCTION idem.full_snapshot() IS
    'Returns the current snapshot. Its list contains every transaction that has an id and may '
    'still record effects.';

-- The floor is read before the snapshot and the ceiling after it, each in a statement of its own: a
-- transaction that gets its id after the snapshot has only numbers above the floor, and no
-- transaction that the snapshot sees has a number above the ceiling.
CREATE FUNCTION idem.open_pair(p idem.progress) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.floor_to := idem.last_outbox_seq();
    p.snapshot_to := idem.full_snapshot();
    p.ceiling_to := idem.last_outbox_seq();
    p.seq_after := 0;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.open_pair(idem.progress) IS
    'Opens a pair: takes a new snapshot as the newer one.';

CREATE FUNCTION idem.close_pair(p idem.progress) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.snapshot_from := p.snapshot_to;
    p.floor_from := p.floor_to;
    p.snapshot_to := NULL;
    p.floor_to := NULL;
    p.ceiling_to := NULL;
    p.seq_after := 0;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.close_pair(idem.progress) IS
    'Returns the progress after all effects between its two snapshots: the newer snapshot becomes '
    'the older one.';

-- Reads without a lock. The next check finds an effect that this check misses.
CREATE FUNCTION idem.has_work(this idem.relay, partition integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    p idem.progress;
BEGIN
    PERFORM idem.check_isolation();
    p := idem.progress_of(this, partition);
    IF p.leased_until > clock_timestamp() THEN
        RETURN false;
    END IF;
    RETURN p.snapshot_to IS NOT NULL
        OR EXISTS (SELECT 1 FROM idem.outbox_row o WHERE o.seq > p.floor_from)
        OR EXISTS (SELECT 1 FROM pg_snapshot_xip(p.snapshot_from) AS late (tx), LATERAL (
                       SELECT 1 FROM idem.outbox_row o WHERE o.tx = late.tx LIMIT 1) o)
        OR EXISTS (SELECT 1 FROM idem.delayed d
                    WHERE d.relay = this.id AND d.partition = has_work.partition
                      AND d.due_at <= clock_timestamp());
END
$$;
COMMENT ON FUNCTION idem.has_work(idem.relay, integer) IS
    'Returns whether a partition needs to be locked: it is not leased, and there may be effects '
    'for it.';

-- Computes the bounds of the batch and does not copy its effects. The first effect is in the batch
-- whatever its size.
CREATE FUNCTION idem.lease_batch(
    this        idem.relay,
    p           idem.progress,
    chosen_at   timestamptz,
    lease       interval,
    max_effects integer,
    max_bytes   bigint
) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    resumed boolean;
    found_effects bigint;
    bytes bigint;
    is_cut boolean;
BEGIN
    p.from_delayed := false;
    p.leased_until := NULL;
    p.written_at := chosen_at;
    LOOP
        resumed := p.snapshot_to IS NOT NULL;
        IF NOT resumed THEN
            p := idem.open_pair(p);
        END IF;
        SELECT count(*),
               max(e.seq),
               coalesce(bool_or(e.deliver_after > chosen_at), false),
               sum(idem.effect_bytes(e.payload, e.headers))
          INTO found_effects, p.seq_through, p.deferring, bytes
          FROM idem.effects_between(
                   p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                   pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                   this.partitions, p.partition, max_effects) e;
        is_cut := bytes > max_bytes;
        IF is_cut THEN
            -- Cut the batch after the last effect with which the sum is within the limit.
            SELECT max(e.seq), coalesce(bool_or(e.deliver_after > chosen_at), false)
              INTO p.seq_through, p.deferring
              FROM (SELECT x.seq, x.deliver_after, x.bytes,
                           sum(x.bytes) OVER (ORDER BY x.seq ROWS UNBOUNDED PRECEDING)
                               AS bytes_through
                      FROM (SELECT y.seq, y.deliver_after,
                                   idem.effect_bytes(y.payload, y.headers) AS bytes
                              FROM idem.effects_between(
                                       p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                                       pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                       this.partitions, p.partition, max_effects) y) x) e
             WHERE e.bytes_through <= max_bytes OR e.bytes_through = e.bytes;
        END IF;
        IF found_effects > 0 THEN
            p.exhausted := found_effects < max_effects AND NOT is_cut;
            p.leased_until := chosen_at + lease;
            p.pos := idem.append_progress(p);
            RETURN p;
        ELSIF resumed THEN
            -- The last batch was full and contained all remaining effects of this pair of
            -- snapshots. Newer effects are in the next pair.
            p := idem.close_pair(p);
            p.pos := idem.append_progress(p);
        ELSE
            -- If a partition has no effects, nothing is written. Only a long range of sequence
            -- numbers without effects is recorded, so that it is not scanned again.
            IF p.ceiling_to > p.floor_from + 1000 THEN
                PERFORM idem.append_progress(idem.close_pair(p));
            END IF;
            RETURN NULL;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.lease_batch(
    idem.relay, idem.progress, timestamptz, interval, integer, bigint
) IS
    'Leases the next batch of a partition and returns its progress; null when there are no '
    'effects.';

-- Leases delayed effects that are due, in the order of due_at.
CREATE FUNCTION idem.lease_delayed(
    this        idem.relay,
    p           idem.progress,
    chosen_at   timestamptz,
    lease       interval,
    max_effects integer,
    max_bytes   bigint
) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.from_delayed := true;
    p.deferring := false;
    p.leased_until := chosen_at + lease;
    p.written_at := chosen_at;
    p.pos := idem.append_progress(p);
    UPDATE idem.delayed d SET token = p.pos
      FROM (SELECT n.due_at, n.seq,
                   row_number() OVER in_order = 1 OR sum(n.bytes) OVER in_order <= max_bytes AS fits
              FROM (SELECT x.due_at, x.seq, x.bytes FROM idem.delayed x
                     WHERE x.relay = this.id AND x.partition = p.partition AND x.due_at <= chosen_at
                     ORDER BY x.due_at, x.seq LIMIT max_effects) n
            WINDOW in_order AS (ORDER BY n.due_at, n.seq ROWS UNBOUNDED PRECEDING)) next
     WHERE next.fits AND d.relay = this.id AND d.partition = p.partition
       AND d.due_at = next.due_at AND d.seq = next.seq;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.lease_delayed(
    idem.relay, idem.progress, timestamptz, interval, integer, bigint
) IS
    'Leases the delayed effects of a partition that are due and returns its progress.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_batches

-- What the functions of relays have in common: checks, the batch that is leased, parked effects.

CREATE FUNCTION idem.check_lease(lease interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease IS NULL THEN
        RAISE EXCEPTION 'lease must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF lease NOT BETWEEN '1 millisecond' AND '1 day' THEN
        RAISE EXCEPTION 'lease is %', lease
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 1 millisecond and 1 day.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_lease(interval) IS
    'Checks the length of a lease. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_max_effects(max_effects integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF max_effects IS NULL THEN
        RAISE EXCEPTION 'max_effects must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_effects NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_effects is %', max_effects
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 10000.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_max_effects(integer) IS
    'Checks the argument max_effects. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_max_bytes(max_bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF max_bytes IS NULL THEN
        RAISE EXCEPTION 'max_bytes must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_bytes NOT BETWEEN 1 AND 1073741824 THEN
        RAISE EXCEPTION 'max_bytes is %', max_bytes
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 1 and 1073741824 (1 GB).';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_max_bytes(bigint) IS
    'Checks the argument max_bytes. Errors: 22004, 22023.';

CREATE FUNCTION idem.held_batch(
    this      idem.relay,
    partition integer,
    token     bigint
) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p idem.progress := idem.progress_of(this, partition);
BEGIN
    IF token IS NULL THEN
        RAISE EXCEPTION 'token must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF p.pos <> token OR p.leased_until IS NULL THEN
        RAISE EXCEPTION 'lease token % is no longer valid for partition % of relay "%"',
            token, partition, this.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The lease expired and another process acquired it, or the batch was '
                         'acknowledged. Lease the next batch with idem_relay_next.';
    END IF;
    -- A restored dump can contain a lease whose cursor has transaction ids of another cluster, so
    -- check the ids.
    PERFORM idem.check_xids(p);
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.held_batch(idem.relay, integer, bigint) IS
    'Returns the progress of the batch that the token leases. Errors: 22004, 55000 (stale token, '
    'or transaction ids went backwards).';

-- Moves the cursor past the leased batch. Effects that are not due yet are moved to idem.delayed.
CREATE FUNCTION idem.finish_batch(this idem.relay, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    p idem.progress := idem.held_batch(this, partition, token);
BEGIN
    IF p.from_delayed THEN
        DELETE FROM idem.delayed d
         WHERE d.relay = this.id AND d.partition = finish_batch.partition
           AND d.token = finish_batch.token;
        p.from_delayed := false;
    ELSE
        IF p.deferring THEN
            INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
            SELECT this.id, finish_batch.partition, e.deliver_after, e, e.seq
              FROM idem.effects_between(
                   p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                   pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                   this.partitions, p.partition, 10000) e
             WHERE e.seq <= p.seq_through
               AND e.deliver_after > p.written_at
               AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                                WHERE k.relay = this.id AND k.seq = e.seq);
            p.deferring := false;
        END IF;
        IF p.exhausted THEN
            p := idem.close_pair(p);
            p.exhausted := false;
        ELSE
            p.seq_after := p.seq_through;
        END IF;
    END IF;
    p.leased_until := NULL;
    p.seq_through := NULL;
    p.written_at := clock_timestamp();
    PERFORM idem.append_progress(p);
END
$$;
COMMENT ON FUNCTION idem.finish_batch(idem.relay, integer, bigint) IS
    'Moves the cursor past the batch that the token leases.';

CREATE FUNCTION idem.park(
    this       idem.relay,
    p          idem.progress,
    message_id uuid,
    seq        bigint,
    error      text
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    IF p.from_delayed THEN
        INSERT INTO idem.parked_effect (relay, partition, error, effect, seq)
        SELECT p.relay, p.partition, park.error, d.effect, d.seq
          FROM idem.delayed d
         WHERE d.relay = p.relay AND d.partition = p.partition AND d.token = p.pos
           AND (d.effect).message_id = coalesce(park.message_id, (d.effect).message_id)
           AND d.seq = coalesce(park.seq, d.seq)
        ON CONFLICT DO NOTHING;
    ELSE
        INSERT INTO idem.parked_effect (relay, partition, error, effect, seq)
        SELECT p.relay, p.partition, park.error, e, e.seq
          FROM idem.effects_between(
               p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
               pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
               this.partitions, p.partition, 10000) e
         WHERE e.seq <= p.seq_through
           AND e.message_id = coalesce(park.message_id, e.message_id)
           AND e.seq = coalesce(park.seq, e.seq)
           AND (e.deliver_after IS NULL OR e.deliver_after <= p.written_at)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem.park(idem.relay, idem.progress, uuid, bigint, text) IS
    'Parks effects of the leased batch: those with this message id, or the one with this seq. '
    'Returns false if the batch has no such effect, or it is parked already.';

CREATE FUNCTION idem.take_parked(
    relay       text,
    error_like  text,
    max_effects integer
) RETURNS SETOF idem.parked_effect
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    this idem.relay := idem.check_relay(take_parked.relay, 0);
BEGIN
    PERFORM idem.check_error_like(error_like, 'error_like');
    PERFORM idem.check_max_effects(max_effects);
    RETURN QUERY
        DELETE FROM idem.parked_effect k
         USING (SELECT x.seq FROM idem.parked_effect x
                 WHERE x.relay = this.id AND x.error LIKE error_like
                 ORDER BY x.seq LIMIT max_effects FOR UPDATE SKIP LOCKED) taken
         WHERE k.relay = this.id AND k.seq = taken.seq
        RETURNING k.*;
END
$$;
COMMENT ON FUNCTION idem.take_parked(text, text, integer) IS
    'Deletes the oldest parked effects of a relay, at most max_effects, with an error that '
    'matches the LIKE pattern, and returns them. Errors: 22004, 22023, 42704, 25006.';

CREATE FUNCTION idem.with_trace(headers jsonb, traceparent text) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN traceparent IS NULL THEN headers
            ELSE coalesce(headers, '{}')
                 OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('traceparent', traceparent)
       END;
COMMENT ON FUNCTION idem.with_trace(jsonb, text) IS
    'Returns the headers with the trace context added, from which the receiving functions read it.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_relays

-- What the functions of leases have in common: the pending message, the retry policy, and how a
-- message becomes a dead letter.

CREATE FUNCTION idem.check_lease_transaction() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'cannot use a lease during recovery'
            USING ERRCODE = 'read_only_sql_transaction';
    ELSIF current_setting('transaction_isolation')
          NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'leases need READ COMMITTED, but this transaction is %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    ELSIF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'cannot use a lease in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_lease_transaction() IS
    'Checks that the current transaction can change a lease. Errors: 25000 (not READ COMMITTED), '
    '25006 (a standby or a read-only transaction).';

-- The row type of idem.pending_0 is used for both tables.
CREATE FUNCTION idem.find_pending(
    table_number integer,
    key          uuid,
    destination  integer
) RETURNS idem.pending_0
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p idem.pending_0;
BEGIN
    IF table_number = 0 THEN
        SELECT * INTO p FROM idem.pending_0 x
         WHERE x.key = find_pending.key AND x.destination = find_pending.destination
           FOR UPDATE;
    ELSE
        SELECT * INTO p FROM idem.pending_1 x
         WHERE x.key = find_pending.key AND x.destination = find_pending.destination
           FOR UPDATE;
    END IF;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.find_pending(integer, uuid, integer) IS
    'Locks and returns the pending message of an identity; a row of nulls if there is none.';

CREATE FUNCTION idem.write_pending(table_number integer, p idem.pending_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF table_number = 0 THEN
        UPDATE idem.pending_0 x
           SET seq = p.seq,
               token = p.token,
               due_at = p.due_at,
               attempt = p.attempt,
               payload_slice = p.payload_slice,
               state = p.state,
               stops_claims = p.stops_claims AND p.state = 'l',
               errors = p.errors
         WHERE x.key = p.key AND x.destination = p.destination;
    ELSE
        UPDATE idem.pending_1 x
           SET seq = p.seq,
               token = p.token,
               due_at = p.due_at,
               attempt = p.attempt,
               payload_slice = p.payload_slice,
               state = p.state,
               stops_claims = p.stops_claims AND p.state = 'l',
               errors = p.errors
         WHERE x.key = p.key AND x.destination = p.destination;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.write_pending(integer, idem.pending_0) IS
    'Writes a pending message except its key, destination, id, ordering key and time of arrival, '
    'which no function in SQL changes. Only a lease stops claims.';

-- The id and the destination are checked before the token, so that an id of 2,000 bytes is reported
-- as an invalid argument and not as a lost lease.
CREATE FUNCTION idem.held_pending(
    table_number integer,
    id           text,
    destination  text,
    token        bigint
) RETURNS idem.pending_0
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key uuid := idem.key_of(held_pending.id);
    p   idem.pending_0;
BEGIN
    p := idem.find_pending(table_number, key, idem.find_destination(held_pending.destination));
    IF token IS NULL THEN
        RAISE EXCEPTION 'token must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF p.id <> held_pending.id THEN
        RAISE EXCEPTION 'another message id of destination "%" has the same key',
            held_pending.destination
            USING ERRCODE = 'integrity_constraint_violation',
                  HINT = format('The other id is %s. '
                                'Send one of the two messages with another id.', p.id);
    ELSIF p.key IS NULL OR p.token <> held_pending.token OR p.state <> 'l' THEN
        RAISE EXCEPTION 'lease token % is no longer valid for message "%" of destination "%"',
            held_pending.token, held_pending.id, held_pending.destination
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The lease expired and another process acquired it, or the message was '
                         'completed or released. Stop working on it.';
    END IF;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.held_pending(integer, text, text, bigint) IS
    'Locks and returns the pending message that the token leases. Errors: 22004, 22023, 23000, '
    '55000 (stale token).';

-- The defaults of retry policies are defined here only, except max_attempts, which is defined in
-- extension/core.
CREATE FUNCTION idem.default_policy(destination integer) RETURNS idem.retry_policy
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN ROW(destination, idem.default_max_attempts(), 2, 0.2, '1 second', '10 minutes', '{}')
       ::idem.retry_policy;
COMMENT ON FUNCTION idem.default_policy(integer) IS
    'Returns the retry policy of a destination without a policy of its own.';

CREATE FUNCTION idem.policy_of(destination integer) RETURNS idem.retry_policy
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    policy idem.retry_policy;
BEGIN
    SELECT * INTO policy FROM idem.retry_policy p WHERE p.destination = policy_of.destination;
    IF NOT FOUND THEN
        policy := idem.default_policy(policy_of.destination);
    END IF;
    RETURN policy;
END
$$;
COMMENT ON FUNCTION idem.policy_of(integer) IS
    'Returns the retry policy of a destination: the one that idem_configure_retries set, or the '
    'defaults.';

-- Calculates with logarithms, because factor ^ attempt can overflow.
CREATE FUNCTION idem.pause_after(policy idem.retry_policy, attempt integer) RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    base_s  float8 := extract(epoch FROM policy.base);
    cap_s   float8 := extract(epoch FROM policy.cap);
    pause_s float8;
BEGIN
    IF base_s = 0 THEN
        RETURN '0';
    END IF;
    pause_s := CASE WHEN ln(base_s) + greatest(attempt - 1, 0) * ln(policy.factor) >= ln(cap_s)
                    THEN cap_s
                    ELSE base_s * exp(greatest(attempt - 1, 0) * ln(policy.factor)) END;
    RETURN pause_s * (1 - policy.jitter * random()) * interval '1 second';
END
$$;
COMMENT ON FUNCTION idem.pause_after(idem.retry_policy, integer) IS
    'Returns the back-off after a failed attempt: base * factor ^ (attempt - 1), at most cap. The '
    'share jitter of it is random.';

-- The dead letter has its own copy of the payload, because dead letters may be kept for months. The
-- pending row stays, so that a redelivery of the message is recognized.
CREATE FUNCTION idem.make_dead_letter(table_number integer, p idem.pending_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    b idem.payload_0;
BEGIN
    EXECUTE format('SELECT x.* FROM %s x WHERE x.seq = $1', idem.payload_table(p.payload_slice))
       INTO STRICT b USING p.seq;
    PERFORM idem.write_dead_letter(p, b.payload, b.content_type, b.type, b.headers, b.traceparent);
    p.due_at := 'infinity';
    p.state := 'd';
    p.payload_slice := NULL;
    PERFORM idem.write_pending(table_number, p);
END
$$;
COMMENT ON FUNCTION idem.make_dead_letter(integer, idem.pending_0) IS
    'Makes a received message a dead letter.';

-- idem_next calls this function for messages that are due and have no attempt left, or have a final
-- error. A message can be received after its final error: the error was reported by a consumer that
-- got the message from its broker. The function skips rows that another transaction has locked.
CREATE FUNCTION idem.make_dead_letters(
    destination  integer,
    keys         uuid[],
    max_attempts integer
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    table_number integer := idem.enter_pending();
    now_wall     timestamptz := clock_timestamp();
    p            idem.pending_0;
BEGIN
    FOR p IN EXECUTE format($sql$
        SELECT x.* FROM %s x
         WHERE x.key = ANY ($1) AND x.destination = $2 AND x.payload_slice IS NOT NULL
           AND (x.attempt >= $3 OR x.errors @> '[{"final": true}]') AND x.due_at <= $4
         ORDER BY x.key FOR UPDATE SKIP LOCKED
        $sql$, idem.pending_table(table_number)) USING keys, destination, max_attempts, now_wall
    LOOP
        IF p.state = 'l' THEN
            p.errors := idem.note_expired_lease(p.errors, p.attempt);
        END IF;
        PERFORM idem.make_dead_letter(table_number, p);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.make_dead_letters(integer, uuid[], integer) IS
    'Makes dead letters of due messages that have no attempt left or have a final error.';

-- The message may already have a dead letter. A claim deletes the pending row and keeps the dead
-- letter, and after the claim is forgotten the message can be received and fail again. The newer
-- dead letter replaces the older one.
CREATE FUNCTION idem.write_dead_letter(
    p            idem.pending_0,
    payload      bytea,
    content_type text,
    type         text,
    headers      jsonb,
    traceparent  text
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO idem.dead_letter AS d
           (seq, received_at, key, destination, attempt, id, order_key,
            type, payload, content_type, headers, traceparent, errors)
    VALUES ((p).seq, (p).received_at, (p).key, (p).destination, (p).attempt, (p).id, (p).order_key,
            write_dead_letter.type, write_dead_letter.payload, write_dead_letter.content_type,
            write_dead_letter.headers, write_dead_letter.traceparent, (p).errors)
    ON CONFLICT (key, destination) DO UPDATE
       SET seq = excluded.seq,
           died_at = excluded.died_at,
           received_at = excluded.received_at,
           attempt = excluded.attempt,
           id = excluded.id,
           order_key = excluded.order_key,
           type = excluded.type,
           payload = excluded.payload,
           content_type = excluded.content_type,
           headers = excluded.headers,
           traceparent = excluded.traceparent,
           errors = excluded.errors;
END;
COMMENT ON FUNCTION idem.write_dead_letter(idem.pending_0, bytea, text, text, jsonb, text) IS
    'Writes the dead letter of a pending message.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_leases

-- Dead letters: how they are found, requeued, discarded and forwarded.

CREATE FUNCTION idem.check_error_like(pattern text, what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pattern IS NULL THEN
        RAISE EXCEPTION '% must not be null', what USING ERRCODE = 'null_value_not_allowed';
    -- This literal has the same meaning with both values of standard_conforming_strings, which the
    -- caller may have set.
    ELSIF pattern ~ E'^([^\\\\]|\\\\.)*\\\\$' THEN
        RAISE EXCEPTION '% ends with the escape character', what
            USING ERRCODE = 'invalid_parameter_value', HINT = E'Write \\\\ for a backslash.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_error_like(text, text) IS
    'Checks a LIKE pattern; what is its name in the error message. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_letter_room(destination text, payload bytea) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    d    integer := idem.find_destination(check_letter_room.destination);
    most integer := current_setting('idem.max_dead_letters')::integer;
    n    bigint;
BEGIN
    IF octet_length(payload) > 64 * 1024 * 1024 THEN
        RAISE EXCEPTION 'payload has % bytes', octet_length(payload)
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'The payload of a dead letter has at most 64 MiB: store the message '
                         'elsewhere.';
    END IF;
    SELECT count(*) INTO n
      FROM (SELECT FROM idem.dead_letter l WHERE l.destination = d LIMIT most) l;
    IF n >= most THEN
        RAISE EXCEPTION 'destination "%" has reached the limit of % dead letters',
            check_letter_room.destination, n
            USING ERRCODE = 'configuration_limit_exceeded',
                  HINT = 'Requeue or discard dead letters of this destination, or raise '
                         'idem.max_dead_letters.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_letter_room(text, bytea) IS
    'Checks that a message of a broker can become a dead letter. Errors: 53400 '
    '(idem.max_dead_letters), 54000 (the payload is too large).';

-- The hash does not contain anything that differs between two deliveries of a message, so a
-- redelivered message has the same dead letter.
CREATE FUNCTION idem.hash_of_message(
    source  text,
    headers jsonb,
    key     text,
    type    text,
    payload bytea
) RETURNS uuid
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN substr(
           encode(sha256(sha256(pg_catalog.convert_to(
                             pg_catalog.jsonb_build_array(
                                 source, coalesce(headers, '{}'), key, type)::text,
                             'UTF8'))
                         || sha256(payload)),
                  'hex'),
           1, 32)::uuid;
COMMENT ON FUNCTION idem.hash_of_message(text, jsonb, text, text, bytea) IS
    'Returns the key of the dead letter of a message without an id.';

-- Transactions lock in this order: claim, pending row, dead letter. So two functions never deadlock
-- over one message. idem_complete is the exception: it locks the pending row first, and does not
-- wait for a claim after that. Functions for many messages skip rows that are locked.

-- Writes the pending message first and then looks for a claim, as idem_receive does.
CREATE FUNCTION idem.requeue_letter(
    table_number integer,
    p            idem.pending_0,
    letter       idem.dead_letter
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    payload_slice integer;
    claim         text;
BEGIN
    IF p.state <> 'd' THEN
        RETURN false;  -- the message was received again and is pending
    END IF;
    SELECT r.current INTO payload_slice FROM idem.payload_rotation r WHERE r.id = 1;
    IF p.key IS NOT NULL THEN
        PERFORM idem.delete_pending(table_number, p);
    END IF;
    p.seq := nextval('idem.pending_seq');
    p.token := 0;
    p.due_at := clock_timestamp();
    p.received_at := letter.received_at;
    p.key := letter.key;
    p.destination := letter.destination;
    p.attempt := 0;
    p.payload_slice := payload_slice;
    p.state := 'r';
    p.stops_claims := false;
    p.id := letter.id;
    p.order_key := letter.order_key;
    p.errors := '[]';
    EXECUTE format('INSERT INTO %s SELECT ($1).*', idem.pending_table(table_number)) USING p;
    claim := idem.claim_state(
        coalesce(letter.id, letter.key::text),
        (SELECT d.name FROM idem.destination d WHERE d.id = letter.destination));
    IF claim = 'in_progress' THEN
        RAISE EXCEPTION 'another transaction is claiming message "%"',
            coalesce(letter.id, letter.key::text)
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Try again when that transaction has ended.';
    END IF;
    DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
    IF claim = 'claimed' THEN
        PERFORM idem.delete_pending(table_number, p);
        RETURN false;
    END IF;
    EXECUTE format('INSERT INTO %s (seq, payload, content_type, type, headers, traceparent) '
                   'VALUES ($1, $2, $3, $4, $5, $6)', idem.payload_table(payload_slice))
      USING p.seq, letter.payload, letter.content_type, letter.type, letter.headers,
            letter.traceparent;
    PERFORM idem.wake_consumers();
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem.requeue_letter(integer, idem.pending_0, idem.dead_letter) IS
    'Makes a dead letter a pending message that is ready. Returns false if the message was '
    'claimed meanwhile or was received again. The caller has locked the pending message and then '
    'the dead letter. Error: 55P03 (another transaction is claiming the message).';

-- No process works on a message that waits for a retry, so it can be leased at once. The function
-- skips a row that another transaction has locked, because it must not wait for a claimer that
-- waits for a lease.
CREATE FUNCTION idem.end_back_off(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ended integer;
BEGIN
    EXECUTE format($sql$
        WITH waiting AS MATERIALIZED (
            SELECT x.key, x.destination FROM %1$s x
             WHERE x.key = $1 AND x.destination = $2 AND x.state = 'w'
               AND x.payload_slice IS NULL AND x.due_at > clock_timestamp()
               FOR UPDATE SKIP LOCKED
        )
        UPDATE %1$s p SET due_at = clock_timestamp()
          FROM waiting w WHERE p.key = w.key AND p.destination = w.destination
        $sql$, idem.pending_table(idem.enter_pending()))
      USING idem.key_of(id), idem.find_destination(destination);
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended > 0;
END
$$;
COMMENT ON FUNCTION idem.end_back_off(text, text) IS
    'Makes a message of a broker due that waits for a retry. Returns false if there is no such '
    'message.';

CREATE FUNCTION idem.delete_pending(table_number integer, p idem.pending_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DELETE FROM %s x WHERE x.key = $1 AND x.destination = $2',
                   idem.pending_table(table_number))
      USING p.key, p.destination;
END
$$;
COMMENT ON FUNCTION idem.delete_pending(integer, idem.pending_0) IS 'Deletes a pending message.';

CREATE FUNCTION idem.find_letter(
    id          text,
    destination text,
    for_update  boolean
) RETURNS idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter_key uuid := idem.key_of(find_letter.id);
    number     integer := idem.find_destination(find_letter.destination);
    letter     idem.dead_letter;
BEGIN
    IF for_update THEN
        SELECT l.* INTO letter FROM idem.dead_letter l
         WHERE l.key = letter_key AND l.destination = number
           FOR UPDATE;
    ELSE
        SELECT l.* INTO letter FROM idem.dead_letter l
         WHERE l.key = letter_key AND l.destination = number;
    END IF;
    IF letter.id <> find_letter.id THEN
        RAISE EXCEPTION 'another message id of destination "%" has the same key',
            find_letter.destination
            USING ERRCODE = 'integrity_constraint_violation',
                  HINT = format('The other id is %s.', letter.id);
    END IF;
    RETURN letter;
END
$$;
COMMENT ON FUNCTION idem.find_letter(text, text, boolean) IS
    'Returns the dead letter of a message, locked if for_update is true; a row of nulls if there '
    'is none. Errors: 22004, 22023, 23000.';

-- While the claim waits, another session can requeue the dead letter. The message is then pending
-- again, so the claim is undone.
CREATE FUNCTION idem.take_letter(
    id             text,
    destination    text,
    wait           boolean,
    OUT is_claimed boolean,
    OUT letter     idem.dead_letter
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    claim_outcome text;
BEGIN
    -- The claim is inside the block with the exception handler, so that the exception undoes it.
    claim_outcome := (@extschema@.idem_claim(
        take_letter.id, take_letter.destination, take_letter.wait, NULL::bytea,
        NULL::timestamptz)).outcome;
    is_claimed := claim_outcome = 'claimed';
    IF claim_outcome = 'in_progress' THEN
        RETURN;
    END IF;
    DELETE FROM idem.dead_letter l
     WHERE l.key = idem.key_of(take_letter.id)
       AND l.destination = idem.find_destination(take_letter.destination)
    RETURNING l.* INTO letter;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'ID001';
    END IF;
EXCEPTION
    WHEN SQLSTATE 'ID001' THEN
        is_claimed := false;
        letter := NULL;
END
$$;
COMMENT ON FUNCTION idem.take_letter(text, text, boolean) IS
    'Claims the message of a dead letter, deletes the dead letter and returns it. is_claimed is '
    'false if the message was processed meanwhile. The dead letter is null, and the message is '
    'not claimed, if the dead letter no longer exists, or if another transaction holds the '
    'message and wait is false.';

CREATE FUNCTION idem.some_letters(
    destination  text,
    error_like   text,
    max_messages integer
) RETURNS SETOF idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    d integer := idem.find_destination(some_letters.destination);
BEGIN
    PERFORM idem.check_error_like(error_like, 'error_like');
    IF max_messages IS NULL THEN
        RAISE EXCEPTION 'max_messages must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', max_messages
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 10000.';
    END IF;
    PERFORM idem.check_lease_transaction();
    RETURN QUERY
        SELECT l.* FROM idem.dead_letter l
         WHERE l.destination = d AND l.errors -> -1 ->> 'error' LIKE error_like
         ORDER BY l.seq LIMIT max_messages;
END
$$;
COMMENT ON FUNCTION idem.some_letters(text, text, integer) IS
    'Returns dead letters with a last error that matches the pattern, in the order of arrival, '
    'without locking them. Errors: 22004, 22023, 25000, 25006.';

-- is_locked: whether this transaction has locked the pending message and the dead letter, or the
-- dead letter alone if no message is pending.
CREATE FUNCTION idem.lock_letter(
    table_number  integer,
    seen          idem.dead_letter,
    OUT is_locked boolean,
    OUT p         idem.pending_0,
    OUT letter    idem.dead_letter
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_pending boolean;
BEGIN
    EXECUTE format('SELECT true FROM %s x WHERE x.key = $1 AND x.destination = $2',
                   idem.pending_table(table_number))
       INTO is_pending USING seen.key, seen.destination;
    EXECUTE format('SELECT x.* FROM %s x WHERE x.key = $1 AND x.destination = $2 '
                   'FOR UPDATE SKIP LOCKED', idem.pending_table(table_number))
       INTO p USING seen.key, seen.destination;
    is_locked := false;
    IF is_pending IS NULL OR p.key IS NOT NULL THEN
        SELECT l.* INTO letter FROM idem.dead_letter l
         WHERE l.key = seen.key AND l.destination = seen.destination
           FOR UPDATE SKIP LOCKED;
        is_locked := FOUND;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.lock_letter(integer, idem.dead_letter) IS
    'Locks the pending message and the dead letter of an identity without waiting, and returns '
    'their current rows.';

CREATE FUNCTION idem.check_topic(topic text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF topic IS NULL THEN
        RAISE EXCEPTION 'topic must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(topic) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'topic has % bytes', octet_length(topic)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a topic of 1 to 255 bytes.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_topic(text) IS
    'Checks the topic of an effect. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_has_relay() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM idem.relay r WHERE r.dropped_at IS NULL) THEN
        RAISE EXCEPTION 'there is no relay to publish the dead letter'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Create a relay with idem_create_relay, and run it.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_has_relay() IS
    'Checks that there is a relay, so that the outbox keeps an effect until it is published. '
    'Error: 55000 (there is no relay).';

-- Some headers of the dead letter must not be forwarded, because brokers and consumers would apply
-- them to the new message: as its message id, as its number of deliveries, or as conditions of the
-- publication.
CREATE FUNCTION idem.headers_to_forward(headers jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT pg_catalog.jsonb_object_agg(h.name, h.value)
          FROM jsonb_each(headers) AS h(name, value)
         WHERE h.name NOT IN ('message-id', 'x-acquired-count', 'x-delivery-count', 'x-death')
           AND h.name NOT LIKE 'x-first-death-%' AND h.name NOT LIKE 'x-last-death-%'
           AND h.name NOT ILIKE 'nats-%'
           AND h.name NOT LIKE 'idem-source-%' AND h.name NOT LIKE 'idem-dead-letter-%');
COMMENT ON FUNCTION idem.headers_to_forward(jsonb) IS
    'Returns the headers of a dead letter without those that describe its former delivery.';

CREATE FUNCTION idem.forward_letter(
    id          text,
    destination text,
    topic       text,
    wait        boolean
) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken  record;
    letter idem.dead_letter;
BEGIN
    SELECT t.is_claimed, t.letter INTO taken
      FROM idem.take_letter(forward_letter.id, forward_letter.destination, forward_letter.wait) t;
    letter := taken.letter;
    -- If the message was processed meanwhile, its dead letter is deleted and not forwarded.
    IF letter.key IS NULL OR NOT taken.is_claimed THEN
        RETURN NULL;
    END IF;
    RETURN idem.record_letter(forward_letter.id, forward_letter.destination, forward_letter.topic,
                              letter.payload, letter.order_key, letter.type,
                              idem.headers_to_forward(letter.headers), letter.traceparent,
                              letter.content_type);
END
$$;
COMMENT ON FUNCTION idem.forward_letter(text, text, text, boolean) IS
    'Claims the message of a dead letter, records the dead letter as an effect of the message and '
    'deletes the dead letter. Returns the message id of the effect; null if the dead letter no '
    'longer exists, if the message was processed meanwhile (then the dead letter is deleted), or '
    'if another transaction holds the message and wait is false.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_dead_letters

-- The use of destinations.

CREATE FUNCTION idem.use_of_destination(number integer) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place record;
    used  boolean;
BEGIN
    -- Find the tables in the catalog: each table that refers to a destination has a column
    -- destination or source_destination, or a column effect with rows of the outbox.
    FOR place IN
        SELECT c.relname,
               CASE a.attname WHEN 'effect' THEN '(t.effect).source_destination'
                              ELSE format('t.%I', a.attname) END AS reference
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
         WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r'
           AND c.relname <> 'retry_policy'
           -- Skip the table of pending messages that is not current: its rows are outdated.
           AND c.oid <> idem.pending_table(
                            1 - (SELECT r.current FROM idem.pending_rotation r WHERE r.id = 1))
           AND (a.attname IN ('destination', 'source_destination') AND a.atttypid = 'int4'::regtype
                OR a.attname = 'effect' AND a.atttypid = 'idem.outbox_row'::regtype)
         ORDER BY pg_relation_size(c.oid)
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM idem.%I t WHERE %s = $1)',
                       place.relname, place.reference)
           INTO used USING number;
        IF used THEN
            RETURN 'idem.' || place.relname;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem.use_of_destination(integer) IS
    'Returns a table with a row that refers to the destination; null if there is none.';

CREATE FUNCTION idem.destination_count() RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT pg_catalog.count(*) FROM idem.destination);
COMMENT ON FUNCTION idem.destination_count() IS 'Returns the number of destinations.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_destinations

-- Maintenance: a pass is a list of steps. Each step is a transaction of its own. A step that fails
-- does not stop the other steps. Its error is stored until the step succeeds, and is logged when it
-- is new.

CREATE FUNCTION idem.maintenance_steps() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN ARRAY['clock', 'ring short', 'ring standard', 'ring long', 'ring outbox',
             'pending messages', 'payloads', 'progress', 'filters'];
COMMENT ON FUNCTION idem.maintenance_steps() IS
    'Returns the steps of a maintenance pass in their order.';

-- Rings that no destination uses or has left get no filters, because filters need memory.
CREATE FUNCTION idem.build_all_filters() RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(bool_or(idem.build_filters(r.id)), false)
      FROM idem.ring r
     WHERE r.name <> 'outbox'
       AND EXISTS (SELECT FROM idem.destination d
                    WHERE d.ring = r.id
                       OR CASE r.name WHEN 'short'    THEN d.left_short
                                      WHEN 'standard' THEN d.left_standard
                                      ELSE d.left_long END IS NOT NULL);
$$;
COMMENT ON FUNCTION idem.build_all_filters() IS
    'Maintenance step: does one step for the filters of each ring that is used. Returns true if a '
    'step was done.';

-- Each step has its own IF, so that a missing function makes only its own step fail. With one
-- expression for all steps, every step would fail.
CREATE FUNCTION idem.run_step(step text, wait boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF starts_with(step, 'ring ') THEN
        RETURN idem.rotate(substr(step, 6), wait) IN ('opened', 'rotated', 'emptied');
    ELSIF step = 'clock' THEN
        PERFORM idem.keep_clock();
        RETURN false;
    ELSIF step = 'pending messages' THEN
        RETURN idem.rotate_pending();
    ELSIF step = 'payloads' THEN
        RETURN idem.rotate_payloads(wait => run_step.wait);
    ELSIF step = 'progress' THEN
        RETURN idem.rotate_progress();
    ELSIF step = 'filters' THEN
        RETURN idem.build_all_filters();
    END IF;
    RAISE EXCEPTION 'there is no maintenance step "%"', step
        USING ERRCODE = 'invalid_parameter_value', HINT = 'See idem.maintenance_steps().';
END
$$;
COMMENT ON FUNCTION idem.run_step(text, boolean) IS
    'Runs a maintenance step. Returns true if it changed something and may have more to do.';

CREATE FUNCTION idem.note_error(step text, code text, problem text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (SELECT 1 FROM idem.maintenance_error e
                WHERE e.step = note_error.step AND e.sqlstate = code AND e.message = problem) THEN
        PERFORM idem.warn_client(step, problem);
        RETURN;
    END IF;
    INSERT INTO idem.maintenance_error (step, sqlstate, message)
        VALUES (note_error.step, code, problem)
        ON CONFLICT (step) DO UPDATE SET sqlstate = excluded.sqlstate, message = excluded.message;
    RAISE WARNING 'maintenance step "%" fails: %', step, problem
        USING ERRCODE = code,
              HINT = 'The other steps continue, and this step is retried in every pass. It is '
                     'logged again when its error changes: see idem_health().';
END
$$;
COMMENT ON FUNCTION idem.note_error(text, text, text) IS
    'Stores the error of a maintenance step. The error is logged when it is new; a caller of '
    'idem_maintain gets it as a warning each time.';

CREATE FUNCTION idem.warn_client(step text, problem text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET log_min_messages = 'error'
AS $$
BEGIN
    RAISE WARNING 'maintenance step "%" fails: %', step, problem;
END
$$;
COMMENT ON FUNCTION idem.warn_client(text, text) IS
    'Sends a warning to the client only, because the log already has this error.';

CREATE FUNCTION idem.maintain_step(step text, wait boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done    boolean;
    code    text;
    problem text;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'maintenance needs READ COMMITTED, but this transaction is %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Run SET default_transaction_isolation = ''read committed'' before CALL '
                         'idem_maintain().';
    END IF;
    BEGIN
        done := idem.run_step(step, wait);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, problem = MESSAGE_TEXT;
    END;
    IF code IS NULL THEN
        DELETE FROM idem.maintenance_error e WHERE e.step = maintain_step.step;
        RETURN done;
    END IF;
    PERFORM idem.note_error(step, code, problem);
    RETURN false;
END
$$;
COMMENT ON FUNCTION idem.maintain_step(text, boolean) IS
    'Runs one maintenance step. Returns true if the step may have more to do: commit, and call '
    'the function again. An error of the step is reported as a warning. Error: 25000 (not READ '
    'COMMITTED).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_maintenance

-- The functions behind the views.

CREATE FUNCTION idem.waiting() RETURNS TABLE (
    relay              text,
    partition          integer,
    seq                bigint,
    message_id         uuid,
    topic              text,
    key                text,
    type               text,
    recorded_at        timestamptz,
    deliver_after      timestamptz,
    source_destination text,
    replay             boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    part record;
    p    idem.progress;
BEGIN
    FOR part IN
        SELECT r AS relay, rp.partition
          FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.name, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        RETURN QUERY
            SELECT (part.relay).name, part.partition, o.seq, o.message_id, o.topic, o.key, o.type,
                   o.recorded_at, o.deliver_after, d.name, o.replay
              FROM idem.outbox_row o LEFT JOIN idem.destination d ON d.id = o.source_destination
             WHERE (o.tx >= pg_snapshot_xmax(p.snapshot_from)
                    OR o.tx = ANY (ARRAY(SELECT pg_snapshot_xip(p.snapshot_from))))
               AND o.partition_hash % (part.relay).partitions = part.partition
               AND (p.snapshot_to IS NULL OR o.seq > p.seq_after
                    OR NOT pg_visible_in_snapshot(o.tx, p.snapshot_to));
        RETURN QUERY
            SELECT (part.relay).name, part.partition, (w.effect).seq, (w.effect).message_id,
                   (w.effect).topic, (w.effect).key, (w.effect).type, (w.effect).recorded_at,
                   (w.effect).deliver_after, d.name, (w.effect).replay
              FROM idem.delayed w
              LEFT JOIN idem.destination d ON d.id = (w.effect).source_destination
             WHERE w.relay = (part.relay).id AND w.partition = part.partition;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.waiting() IS
    'Returns the effects that each relay has not acknowledged, without payloads and headers.';

-- Counts up to a limit, because a health check must not be slowest when a relay has the largest
-- backlog. An effect with a deliver_after in the future does not count.
CREATE FUNCTION idem.lag(
    p            idem.progress,
    partitions   integer,
    OUT messages bigint,
    OUT oldest   timestamptz
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    at_most constant integer := 100000;
    now_wall timestamptz := clock_timestamp();
BEGIN
    SELECT count(*), min(greatest(w.recorded_at, w.deliver_after)) INTO messages, oldest
      FROM (
        (SELECT o.recorded_at, o.deliver_after FROM idem.outbox_row o
          WHERE o.seq > greatest(p.floor_from, p.seq_after)
            AND o.tx >= pg_snapshot_xmax(p.snapshot_from)
            AND o.partition_hash % partitions = p.partition
            AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT o.recorded_at, o.deliver_after
           FROM pg_snapshot_xip(p.snapshot_from) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND o.seq > p.seq_after
               AND o.partition_hash % partitions = p.partition
               AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
        UNION ALL
        -- Effects that the newer snapshot does not see are in the next pair of snapshots, even if
        -- their seq is below seq_after.
        (SELECT o.recorded_at, o.deliver_after
           FROM pg_snapshot_xip(p.snapshot_to) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND o.seq <= p.seq_after
               AND o.partition_hash % partitions = p.partition
               AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
        UNION ALL
        (SELECT o.recorded_at, o.deliver_after FROM idem.outbox_row o
          WHERE o.seq > p.floor_to AND o.seq <= p.seq_after
            AND o.tx >= pg_snapshot_xmax(p.snapshot_to)
            AND o.partition_hash % partitions = p.partition
            AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT (d.effect).recorded_at, d.due_at FROM idem.delayed d
          WHERE d.relay = p.relay AND d.partition = p.partition AND d.due_at <= now_wall
          ORDER BY d.due_at, d.seq LIMIT at_most)
      ) w;
END
$$;
COMMENT ON FUNCTION idem.lag(idem.progress, integer) IS
    'Returns how many due effects a partition has not acknowledged, counted up to 100,000 of each '
    'kind, and since when the oldest one is due.';

CREATE FUNCTION idem.relay_states() RETURNS TABLE (
    relay        text,
    partition    integer,
    lag_messages bigint,
    lag_seconds  double precision,
    leased_until timestamptz,
    last_step_at timestamptz,
    delayed      bigint,
    parked       bigint,
    blocks       text[]
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
BEGIN ATOMIC
    WITH held AS MATERIALIZED (
        SELECT pg_catalog.format('outbox_%s', s.slice) AS slice,
               idem.relays_holding(s.slice) AS holders
          FROM generate_series(0, 3) AS s (slice)
    )
    SELECT r.name,
           rp.partition,
           w.messages,
           coalesce(extract(epoch FROM clock_timestamp() - w.oldest), 0)::double precision,
           p.leased_until,
           p.written_at,
           (SELECT count(*) FROM idem.delayed d
             WHERE d.relay = r.id AND d.partition = rp.partition),
           (SELECT count(*) FROM idem.parked_effect k
             WHERE k.relay = r.id AND k.partition = rp.partition),
           ARRAY(SELECT h.slice FROM held h WHERE r.name = ANY (h.holders) ORDER BY h.slice)
      FROM idem.relay_partition rp
      JOIN idem.relay r ON r.id = rp.relay AND r.dropped_at IS NULL
     CROSS JOIN LATERAL idem.progress_of(r, rp.partition) p
     CROSS JOIN LATERAL idem.lag(p, r.partitions) w;
END;
COMMENT ON FUNCTION idem.relay_states() IS 'Returns the rows of the view idem.relays.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_views

-- The views for operators.

CREATE VIEW idem.inbox AS
    SELECT DISTINCT c.ring,
           d.name AS destination,
           COALESCE(c.id, c.key::text) AS id,
           c.claimed_at,
           c.fingerprint
      FROM (          SELECT 'short' AS ring, * FROM idem.inbox_short_0
            UNION ALL SELECT 'short', * FROM idem.inbox_short_1
            UNION ALL SELECT 'short', * FROM idem.inbox_short_2
            UNION ALL SELECT 'short', * FROM idem.inbox_short_3
            UNION ALL SELECT 'short', * FROM idem.inbox_short_4
            UNION ALL SELECT 'short', * FROM idem.inbox_short_5
            UNION ALL SELECT 'short', * FROM idem.inbox_short_6
            UNION ALL SELECT 'short', * FROM idem.inbox_short_7
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_0
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_1
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_2
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_3
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_4
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_5
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_6
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_7
            UNION ALL SELECT 'long', * FROM idem.inbox_long_0
            UNION ALL SELECT 'long', * FROM idem.inbox_long_1
            UNION ALL SELECT 'long', * FROM idem.inbox_long_2
            UNION ALL SELECT 'long', * FROM idem.inbox_long_3
            UNION ALL SELECT 'long', * FROM idem.inbox_long_4
            UNION ALL SELECT 'long', * FROM idem.inbox_long_5
            UNION ALL SELECT 'long', * FROM idem.inbox_long_6
            UNION ALL SELECT 'long', * FROM idem.inbox_long_7) c
      JOIN idem.destination d ON d.id = c.destination;
COMMENT ON VIEW idem.inbox IS
    'The claims, with readable ids. During a rotation a claim can be in two slices; the view '
    'shows it once.';

CREATE VIEW idem.outbox AS
    SELECT w.relay, w.partition, w.seq, w.message_id, w.topic, w.key, w.type,
           w.recorded_at, w.deliver_after, w.source_destination, w.replay
      FROM idem.waiting() w;
COMMENT ON VIEW idem.outbox IS
    'The effects that each relay has not acknowledged, without payloads and headers.';

CREATE VIEW idem.relays AS
    SELECT s.relay, s.partition, s.lag_messages, s.lag_seconds, s.leased_until, s.last_step_at,
           s.delayed, s.parked, s.blocks
      FROM idem.relay_states() s;
COMMENT ON VIEW idem.relays IS
    'The backlog of each relay, and the slices of the outbox that it keeps from being truncated.';

CREATE VIEW idem.parked AS
    SELECT r.name AS relay,
           k.partition,
           k.seq,
           (k.effect).message_id,
           (k.effect).topic,
           (k.effect).key,
           (k.effect).type,
           k.parked_at,
           k.error,
           (k.effect).recorded_at
      FROM idem.parked_effect k JOIN idem.relay r ON r.id = k.relay;
COMMENT ON VIEW idem.parked IS
    'The effects that relays have parked, with the error and without payloads and headers: see '
    'idem_relay_unpark and idem_relay_discard.';

CREATE VIEW idem.rings AS
    SELECT r.name AS ring,
           s.slice::integer AS slice,
           CASE s.position
               WHEN 1 THEN 'current'
               WHEN 2 THEN CASE WHEN r.emptying THEN 'emptying'
                                WHEN r.opening THEN 'opening'
                                ELSE 'next' END
               ELSE 'sealed'
           END AS state,
           pg_catalog.pg_stat_get_live_tuples(idem.slice_table(r.name, s.slice)) AS rows_estimate,
           (SELECT sum(pg_catalog.pg_total_relation_size(t.slice))
              FROM pg_catalog.unnest(idem.slice_tables(r.name, s.slice)) AS t (slice))::bigint
               AS bytes,
           CASE WHEN s.position <> 2 AND r.started[s.slice + 1] > '0'
                THEN idem.ran() - r.started[s.slice + 1] END AS age,
           r.retention,
           r.rotations,
           (SELECT c.zero_at FROM idem.clock c WHERE c.id = 1) + r.rotated_at AS rotated_at,
           coalesce((SELECT c.zero_at FROM idem.clock c WHERE c.id = 1) + r.remembers_since,
                    '-infinity') AS remembers_since
      FROM idem.ring r
     CROSS JOIN pg_catalog.unnest(r.slices) WITH ORDINALITY AS s (slice, position)
     ORDER BY r.id, s.slice;
COMMENT ON VIEW idem.rings IS
    'The slices of each ring: state, number of rows (an estimate from the statistics), bytes '
    '(with the external calls that belong to the claims) and age.';

CREATE VIEW idem.filters AS
    SELECT r.name AS ring, f.slice, f.status, f.reason, f.bytes, f.bits_per_claim,
           f.expected_false_positives, f.observed_false_positives, f.look_ups
      FROM idem.filter_states() f JOIN idem.ring r ON r.id = f.ring;
COMMENT ON VIEW idem.filters IS
    'The filter of each slice in which a claim can be. A claim reads a slice unless its filter is '
    'complete and excludes the claim. status: complete, building or none; reason: why it is not '
    'complete. expected_false_positives: the false-positive rate, computed from the bits; '
    'observed_false_positives: the rate of the look-ups since the filter was built. Filters are in '
    'shared memory: a dump, a standby and a server that has just started have none.';

CREATE VIEW idem.stats AS
    SELECT s.name, s.value FROM idem.counters() AS s;
COMMENT ON VIEW idem.stats IS
    'Counters of this database since the server started. They count what committed transactions '
    'did, including savepoints that these transactions rolled back. Empty if the library is not '
    'preloaded.';

-- Only the current table is read, because the rows of the other table are outdated.
CREATE VIEW idem.pending AS
    SELECT p.* FROM idem.pending_0 p
     WHERE (SELECT r.current FROM idem.pending_rotation r WHERE r.id = 1) = 0
    UNION ALL
    SELECT p.* FROM idem.pending_1 p
     WHERE (SELECT r.current FROM idem.pending_rotation r WHERE r.id = 1) = 1;
COMMENT ON VIEW idem.pending IS
    'The pending messages: identities that are not done. state: r ready, l leased, w waiting for '
    'a retry, d dead.';

CREATE VIEW idem.leases AS
    SELECT d.name AS destination,
           COALESCE(p.id, p.key::text) AS id,
           p.token,
           p.attempt,
           p.due_at AS until,
           p.payload_slice IS NOT NULL AS received
      FROM idem.pending p JOIN idem.destination d ON d.id = p.destination
     WHERE p.state = 'l' AND p.due_at > clock_timestamp();
COMMENT ON VIEW idem.leases IS
    'The messages that are leased now, and until when. received: true if the message is in the '
    'durable inbox, false if it is at its broker.';

CREATE VIEW idem.waiting_messages AS
    SELECT d.name AS destination,
           count(*) FILTER (WHERE NOT (p.state = 'l' AND p.due_at > clock_timestamp())) AS waiting,
           count(*) FILTER (WHERE p.due_at <= clock_timestamp()) AS due,
           count(*) FILTER (WHERE p.state = 'l' AND p.due_at > clock_timestamp()) AS leased,
           count(*) FILTER (WHERE p.state = 'w' AND p.due_at > clock_timestamp()) AS resting,
           min(p.received_at) AS oldest,
           min(p.due_at) AS next_due
      FROM idem.pending p JOIN idem.destination d ON d.id = p.destination
     WHERE p.payload_slice IS NOT NULL
     GROUP BY d.name;
COMMENT ON VIEW idem.waiting_messages IS
    'The durable inbox by destination: how many messages wait, how many of these are due now or '
    'wait for a retry (resting), how many are leased, and when the oldest message was received.';

CREATE VIEW idem.dead_letters AS
    SELECT d.name AS destination,
           COALESCE(l.id, l.key::text) AS id,
           l.seq,
           l.died_at,
           l.received_at,
           l.attempt,
           l.order_key AS key,
           l.type,
           l.payload,
           l.content_type,
           l.headers,
           l.traceparent,
           l.errors -> -1 ->> 'error'::text AS last_error,
           l.errors
      FROM idem.dead_letter l JOIN idem.destination d ON d.id = l.destination;
COMMENT ON VIEW idem.dead_letters IS
    'The dead letters: messages that have no attempt left or failed for good, with each error and '
    'its time. See idem_requeue, idem_discard and idem_forward.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   schema_views

-- Health checks, one function for each check. idem_health returns their rows. The functions do not
-- use BEGIN ATOMIC, because the names in it would be looked up on the search_path of the session
-- that installs the extension.

CREATE FUNCTION idem.check_worker() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    worker  record;
    pause   interval;
    waited  interval;
BEGIN
    check_name := 'worker';
    SELECT * INTO worker FROM idem.worker_state();
    pause := greatest(worker.naptime_ms * interval '1 millisecond', '1 minute');
    -- A first pass has been due since the server started or the extension was created. It can start
    -- a minute late: once a minute the worker visits the databases in which no session has used
    -- idem.
    SELECT clock_timestamp() - greatest(pg_postmaster_start_time(),
                                        CASE WHEN c.server_started = '-infinity' THEN c.read_at END)
      INTO waited FROM idem.clock c;
    IF NOT worker.preloaded THEN
        status := 'warning';
        detail := 'idem is not preloaded: there is no worker, no counter and no wake-up. Add idem '
                  'to shared_preload_libraries (shared_preload_libraries = ''idem'') and restart '
                  'the server, or CALL idem_maintain() every minute.';
    ELSIF pg_is_in_recovery() THEN
        status := 'ok';
        detail := 'standby: nothing to do until it is promoted';
    ELSIF worker.since_pass IS NULL THEN
        status := CASE WHEN waited > 2 * pause THEN 'critical' ELSE 'ok' END;
        detail := CASE status WHEN 'ok'
                              THEN format('no pass yet: the first one starts within %s', 2 * pause)
                              ELSE 'no pass in this database yet: see idem.databases, '
                                   'max_worker_processes and the server log' END;
    ELSE
        status := CASE WHEN worker.since_pass > 5 * pause THEN 'critical' ELSE 'ok' END;
        detail := format('the last pass was %s ago', worker.since_pass)
               || CASE status WHEN 'ok' THEN '' ELSE ': see the server log' END;
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION idem.check_worker() IS 'Checks that the worker runs its maintenance passes.';

CREATE FUNCTION idem.check_maintenance() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'maintenance',
           CASE WHEN count(*) = 0 THEN 'ok' ELSE 'critical' END,
           coalesce(string_agg(format('step "%s" has failed since %s: %s %s',
                                      e.step, date_trunc('second', e.since), e.sqlstate, e.message),
                               '; ' ORDER BY e.since, e.step),
                    'every step of the last pass succeeded')
      FROM idem.maintenance_error e;
$$;
COMMENT ON FUNCTION idem.check_maintenance() IS 'Reports the maintenance steps that fail.';

CREATE FUNCTION idem.check_clock() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c        idem.clock;
    now_wall timestamptz := clock_timestamp();
BEGIN
    check_name := 'clock';
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1;
    status := 'warning';
    IF now_wall < c.read_at - interval '1 second' THEN
        detail := format('the wall clock is %s behind its reading in the last pass',
                         c.read_at - now_wall);
    ELSIF idem.ran() - c.jumped_at < '1 hour' THEN
        detail := format('the wall clock jumped by %s, %s ago',
                         justify_hours(make_interval(
                             secs => round(extract(epoch FROM c.jumped_by)))),
                         idem.ran() - c.jumped_at);
    ELSE
        status := 'ok';
        detail := 'the wall clock has not jumped in the last hour';
    END IF;
    IF status <> 'ok' THEN
        detail := detail || '. Rotations are not affected, but leases, due times and sent_at '
                            'depend on the wall clock: configure time synchronization so that it '
                            'slews the clock';
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION idem.check_clock() IS
    'Checks that the wall clock runs like the monotonic clock.';

-- Reads at most 10,000 messages of a destination, because a health check must not be slowest when
-- the backlog is largest.
CREATE FUNCTION idem.check_due_times() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'due times',
           CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
           CASE WHEN count(*) = 0 THEN 'no message is due implausibly late'
                ELSE format('messages are due later than a lease, a back-off or a delay usually '
                            'ends, as after a wrong clock: destination %s. See due_at in '
                            'idem.pending, as the owner of the extension',
                            string_agg(format('%s (until %s)', d.name, far.due_at),
                                       ', ' ORDER BY d.name)) END
      FROM idem.destination d
     CROSS JOIN LATERAL (
         SELECT max(w.due_at) AS due_at
           FROM (SELECT x.due_at, x.state FROM idem.pending x
                  WHERE x.destination = d.id
                    AND x.due_at > clock_timestamp() + interval '25 hours'
                    AND x.due_at < 'infinity'
                  ORDER BY x.due_at DESC LIMIT 10000) w
          WHERE w.state = 'l' OR w.due_at > clock_timestamp() + interval '366 days') far
     WHERE far.due_at IS NOT NULL;
$$;
COMMENT ON FUNCTION idem.check_due_times() IS
    'Reports leases that end in more than 25 hours and messages that are due in more than 366 '
    'days.';

-- A fence waits for the transactions that held the lock when its maintainer first checked the step.
-- A maintainer that checks the step later reads a new list, so a transaction that began after the
-- step can be in a list too. The function shows such a transaction when it is older than one
-- second: shorter transactions delay no rotation.
CREATE FUNCTION idem.rotation_blockers() RETURNS TABLE (
    ring             text,
    pid              integer,
    usename          name,
    application_name text,
    state            text,
    xact_start       timestamptz,
    gid              text,
    blocks           text
)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    WITH step AS (
        SELECT r.name, r.emptying, r.slices[2] AS next,
               c.zero_at + CASE WHEN r.opening THEN r.opened[r.slices[2] + 1]
                                ELSE r.rotated_at END AS published_at
          FROM idem.ring r CROSS JOIN idem.clock c WHERE r.opening OR r.emptying
    ), held AS (
        SELECT l.pid, l.relation, l.mode, l.virtualtransaction FROM pg_locks l
         WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
           AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    ), blocked AS (
        SELECT s.name, h.pid, h.virtualtransaction, s.published_at,
               CASE WHEN s.emptying THEN 'the fence before the TRUNCATE'
                    ELSE 'the fence before the slices rotate' END AS blocks
          FROM step s JOIN held h ON h.relation = 'idem.ring'::regclass
           AND h.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                          'AccessExclusiveLock')
        UNION ALL
        SELECT s.name, h.pid, h.virtualtransaction, NULL,
               format('TRUNCATE of %s', h.relation::regclass)
          FROM step s JOIN held h ON h.relation = ANY (idem.slice_tables(s.name, s.next)::oid[])
         WHERE s.emptying
        UNION ALL
        -- A session that holds this lock stops each step of maintainers, also the first step. The
        -- worker holds it briefly, so the session is shown after one second. CALL idem_maintain()
        -- also holds it while it waits at a fence. A ring that has begun a step then waits for the
        -- transactions above, and not for this session.
        SELECT r.name, h.pid, h.virtualtransaction, '-infinity',
               CASE WHEN m.is_at_fence THEN 'the lock of maintenance, held during a wait at a fence'
                    ELSE 'the lock of maintenance' END
          FROM idem.ring r JOIN held h ON h.relation = 'idem.ring'::regclass
           AND h.mode = 'ShareUpdateExclusiveLock'
         CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_stat_activity a
                                             WHERE a.pid = h.pid
                                               AND a.wait_event_type = 'Extension')) m (is_at_fence)
         WHERE CASE WHEN r.opening OR r.emptying THEN NOT m.is_at_fence ELSE idem.is_due(r) END
    )
    SELECT DISTINCT b.name, b.pid, coalesce(a.usename, p.owner), a.application_name, a.state,
           coalesce(a.xact_start, p.prepared), p.gid, b.blocks
      FROM blocked b
      LEFT JOIN pg_stat_activity a ON a.pid = b.pid
      -- A prepared transaction has no process. It is identified by the lock on its own id.
      LEFT JOIN (pg_prepared_xacts p
                 JOIN pg_locks x ON x.locktype = 'transactionid' AND x.pid IS NULL
                                AND x.transactionid = p.transaction)
        ON b.pid IS NULL AND x.virtualtransaction = b.virtualtransaction
     WHERE b.published_at IS NULL OR a.xact_start IS NULL
        OR a.xact_start <= b.published_at + interval '1 second'
        OR a.xact_start <= clock_timestamp() - interval '1 second'
    UNION ALL
    SELECT r.name, NULL, NULL, NULL, NULL, NULL, NULL,
           format('relay %s has not acknowledged outbox_%s', h.relay, s.slice)
      FROM idem.ring r
     CROSS JOIN LATERAL (SELECT r.slices[CASE WHEN r.emptying THEN 2 ELSE 3 END]) AS s (slice)
     CROSS JOIN LATERAL unnest(idem.relays_holding(s.slice)) AS h (relay)
     WHERE r.name = 'outbox' AND (r.emptying OR idem.is_due(r))
     ORDER BY 1, 6;
$$;
COMMENT ON FUNCTION idem.rotation_blockers() IS 'Returns the rows of idem_rotation_blockers.';

-- If the retention of a ring was changed, its rotation is due at the time of that change at the
-- earliest. Until the first maintenance pass after a start of the server, the clock of the rings
-- does not count the time since the start, so this function adds it.
CREATE FUNCTION idem.overdue(r idem.ring) RETURNS interval
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT idem.ran() - greatest(r.rotated_at + idem.period(r), r.scheduled_at)
         + CASE WHEN c.server_started = pg_postmaster_start_time() THEN '0'
                ELSE greatest(clock_timestamp() - greatest(pg_postmaster_start_time(), c.read_at),
                              '0') END
      FROM idem.clock c;
$$;
COMMENT ON FUNCTION idem.overdue(idem.ring) IS
    'Returns by how much the next rotation of a ring is late; negative if it is not due.';

CREATE FUNCTION idem.check_rotation() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r       idem.ring;
    late    interval;
    holders text;
BEGIN
    FOR r IN SELECT * FROM idem.ring x WHERE x.name <> 'outbox' ORDER BY x.id LOOP
        late := justify_hours(date_trunc('second', idem.overdue(r)));
        check_name := 'rotation ' || r.name;
        status := CASE WHEN late > greatest(2 * idem.period(r), '5 minutes') THEN 'critical'
                       WHEN late > greatest(idem.period(r) / 2, '1 minute') THEN 'warning'
                       ELSE 'ok' END;
        IF status = 'ok' THEN
            detail := format('rotates every %s, last %s ago',
                             idem.period(r), idem.ran() - r.rotated_at);
        ELSE
            SELECT string_agg(b.what, ', ') INTO holders
              FROM (SELECT CASE WHEN x.pid IS NULL
                                THEN format('prepared transaction %L', x.gid)
                                ELSE format('pid %s (%s, %s)', x.pid, x.application_name, x.blocks)
                           END AS what
                      FROM idem.rotation_blockers() x WHERE x.ring = r.name
                     GROUP BY 1 ORDER BY min(x.xact_start) LIMIT 5) b;
            detail := format('late by %s: ', late) || CASE
                WHEN holders IS NOT NULL
                THEN format('it waits for %s: see idem_rotation_blockers()', holders)
                WHEN EXISTS (SELECT 1 FROM idem.maintenance_error e
                              WHERE e.step = 'ring ' || r.name)
                THEN 'its step fails: see the check "maintenance"'
                ELSE 'neither the worker nor CALL idem_maintain() has run its step' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.check_rotation() IS 'Checks that the rings of the inbox rotate in time.';

-- A slice without a filter matters when it is large. Filters can be disabled by configuration.
CREATE FUNCTION idem.check_filters() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    WITH large AS (
        SELECT f.ring, format('%s slices of ring %s (%s)', count(*), r.name, f.reason) AS what
          FROM idem.filter_states() f JOIN idem.ring r ON r.id = f.ring
         WHERE f.status = 'none'
           AND pg_relation_size(idem.slice_table(r.name, f.slice)) > 8 * 1024 * 1024
         GROUP BY f.ring, r.name, f.reason)
    SELECT 'filters',
           CASE WHEN NOT w.uses_filters OR l.slices IS NULL THEN 'ok' ELSE 'warning' END,
           CASE WHEN NOT w.uses_filters THEN 'this server uses no filters'
                WHEN l.slices IS NULL THEN 'every large slice has a filter'
                ELSE format('each claim reads large slices without a filter: %s. See idem.filters',
                            l.slices) END
      FROM (SELECT string_agg(x.what, ', ' ORDER BY x.ring, x.what) AS slices FROM large x) l,
           (SELECT x.preloaded AND NOT pg_is_in_recovery()
                   AND current_setting('idem.filter_memory', true) <> '0' AS uses_filters
              FROM idem.worker_state() x) w;
$$;
COMMENT ON FUNCTION idem.check_filters() IS
    'Reports large slices without a filter, which each claim must read.';

-- A relay writes progress only when it has effects. So the check can find out only for a relay with
-- waiting effects that no process runs it.
CREATE FUNCTION idem.check_relays() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('relay %s/%s', v.relay, v.partition),
           CASE WHEN v.lag_seconds > 3600 THEN 'critical'
                WHEN v.lag_seconds > 60 OR v.parked > 0 THEN 'warning'
                ELSE 'ok' END,
           format('%s effects wait, the oldest for %s s; %s parked',
                  v.lag_messages, round(v.lag_seconds::numeric, 1), v.parked)
           || CASE WHEN v.lag_seconds > 60
                        AND coalesce(v.leased_until, '-infinity') < clock_timestamp()
                        AND coalesce(v.last_step_at, '-infinity')
                            < clock_timestamp() - interval '1 minute'
                   THEN format('; nothing runs it: start a process for this relay, '
                               'or SELECT idem_drop_relay(%L)', v.relay)
                   ELSE '' END
      FROM idem.relays v ORDER BY v.relay, v.partition;
$$;
COMMENT ON FUNCTION idem.check_relays() IS
    'Reports the backlog of each relay, and whether a process runs it.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_checks

-- The kinds of roles: which kinds a role has, and which privileges each kind contains.

-- EXECUTE on one of these functions records that a role has a kind. The other privileges of the
-- role do not show its kinds, because kinds overlap: a consumer has all privileges of a receiver.
-- PostgreSQL renames, drops and dumps these privileges together with the role.
CREATE FUNCTION idem.granted_consumer() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_consumer() IS
    'EXECUTE records that the role was granted the kind consumer.';
CREATE FUNCTION idem.granted_receiver() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_receiver() IS
    'EXECUTE records that the role was granted the kind receiver.';
CREATE FUNCTION idem.granted_relay() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_relay() IS
    'EXECUTE records that the role was granted the kind relay.';
CREATE FUNCTION idem.granted_operator() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_operator() IS
    'EXECUTE records that the role was granted the kind operator.';
CREATE FUNCTION idem.granted_monitor() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_monitor() IS
    'EXECUTE records that the role was granted the kind monitor.';
CREATE FUNCTION idem.granted_admin() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_admin() IS
    'EXECUTE records that the role was granted the kind admin.';

CREATE FUNCTION idem.kinds_of_role(role regrole) RETURNS SETOF text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT k.kind
      FROM idem.kind_of_role k
      JOIN pg_proc f ON f.pronamespace = 'idem'::regnamespace AND f.proname = 'granted_' || k.kind
     CROSS JOIN LATERAL aclexplode(f.proacl) a
     WHERE a.grantee = role AND a.grantee <> f.proowner
$$;
COMMENT ON FUNCTION idem.kinds_of_role(regrole) IS
    'Returns the kinds that idem_grant granted to this role itself, without those of roles that '
    'it is a member of. The owner needs none.';

CREATE FUNCTION idem.privileges_of_kind(kind text) RETURNS TABLE (privilege text, object text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'USAGE', 'SCHEMA @extschema@'
    UNION ALL
    SELECT 'EXECUTE',
           CASE f.prokind WHEN 'p' THEN 'PROCEDURE ' ELSE 'FUNCTION ' END || f.oid::regprocedure
      FROM idem.kind_of_role k
      JOIN pg_proc f ON f.proname = k.may_call
      JOIN pg_depend e ON e.classid = 'pg_proc'::regclass AND e.objid = f.oid AND e.deptype = 'e'
                      AND e.refclassid = 'pg_extension'::regclass
      JOIN pg_extension x ON x.oid = e.refobjid AND x.extname = 'idem'
     WHERE k.kind = privileges_of_kind.kind
    UNION ALL
    SELECT 'EXECUTE', format('FUNCTION idem.granted_%s()', privileges_of_kind.kind)
    UNION ALL
    SELECT 'USAGE', 'SCHEMA idem'
     WHERE EXISTS (SELECT 1 FROM idem.view_of_kind v WHERE v.kind = privileges_of_kind.kind)
    UNION ALL
    SELECT 'SELECT', 'TABLE idem.' || v.may_read
      FROM idem.view_of_kind v WHERE v.kind = privileges_of_kind.kind
    UNION ALL
    -- A view calls its functions with the privileges of the role that reads the view.
    SELECT 'EXECUTE', 'FUNCTION idem.' || f.behind
      FROM unnest(ARRAY['waiting()', 'relay_states()', 'counters()', 'ran()', 'filter_states()',
                        'slice_table(text, integer)', 'slice_tables(text, integer)']) f (behind)
     WHERE privileges_of_kind.kind IN ('monitor', 'admin')
    UNION ALL
    -- idem_maintain runs with the privileges of its caller, because only such a procedure can
    -- commit.
    SELECT 'EXECUTE', 'FUNCTION idem.' || f.behind
      FROM unnest(ARRAY['maintenance_steps()', 'maintain_step(text, boolean)']) f (behind)
     WHERE privileges_of_kind.kind = 'admin'
$$;
COMMENT ON FUNCTION idem.privileges_of_kind(text) IS
    'Returns what idem_grant grants for a kind and idem_revoke revokes: privileges, and objects '
    'as GRANT names them.';

CREATE FUNCTION idem.check_grant(role regrole, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'cannot change privileges in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction';
    ELSIF role IS NULL OR kind IS NULL THEN
        RAISE EXCEPTION 'role and kind must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF NOT EXISTS (SELECT 1 FROM idem.kind_of_role k WHERE k.kind = check_grant.kind) THEN
        RAISE EXCEPTION 'there is no kind "%"', kind
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The kinds are consumer, receiver, relay, operator, monitor and admin.';
    ELSIF NOT EXISTS (SELECT 1 FROM pg_roles a WHERE a.oid = role) THEN
        RAISE EXCEPTION 'role % does not exist', role
            USING ERRCODE = 'undefined_object', HINT = 'Create it with CREATE ROLE.';
    END IF;
    -- This lock serializes changes of privileges, because each change reads the kinds that the
    -- previous change left to the role.
    LOCK TABLE idem.kind_of_role IN SHARE ROW EXCLUSIVE MODE;
END
$$;
COMMENT ON FUNCTION idem.check_grant(regrole, text) IS
    'Checks the arguments of idem_grant and idem_revoke, and serializes these functions. Errors: '
    '22004, 22023, 25006, 42704.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   internal_roles

-- Claims. The functions are in extension/src/sql_api/claim.rs.

CREATE FUNCTION idem_try_claim(id text, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_text_wrapper';
COMMENT ON FUNCTION idem_try_claim(text, text) IS
    'Claims a message (id of 1 to 1,024 bytes) for a destination (1 to 255 bytes). Returns true '
    'if this transaction is the first: process the message. Returns false if the message is a '
    'duplicate. Waits for a concurrent claimer. Returns false if that transaction commits, and '
    'claims the message if it rolls back. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_try_claim(id uuid, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_uuid_wrapper';
COMMENT ON FUNCTION idem_try_claim(uuid, text) IS
    'Claims a message for a destination (1 to 255 bytes). Returns true if this transaction is the '
    'first: process the message. Returns false if the message is a duplicate. Waits for a '
    'concurrent claimer. Returns false if that transaction commits, and claims the message if it '
    'rolls back. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (this id is the '
    'hash of another id), 25006 (standby or read-only transaction), 25P01 (idem.lone_claims), '
    '55P03 (the message is leased).';

CREATE FUNCTION idem_try_claim_batch(ids text[], destination text) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_batch_wrapper';
COMMENT ON FUNCTION idem_try_claim_batch(text[], text) IS
    'Claims up to 100,000 messages of one destination. Returns true or false for each id, as '
    'idem_try_claim does, at the position of the id. The second of two equal ids is a duplicate. '
    'Two batches never deadlock. Errors: 22004 (null argument), 22023 (invalid argument), 23000 '
    '(the hash of an id is the hash of another id), 25006 (standby or read-only transaction), '
    '25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_try_claim_uuid_batch(ids uuid[], destination text) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_uuid_batch_wrapper';
COMMENT ON FUNCTION idem_try_claim_uuid_batch(uuid[], text) IS
    'Claims up to 100,000 messages of one destination. Returns true or false for each id, as '
    'idem_try_claim does, at the position of the id. The second of two equal ids is a duplicate. '
    'Two batches never deadlock. Errors: 22004 (null argument), 22023 (invalid argument), 23000 '
    '(an id is the hash of another id), 25006 (standby or read-only transaction), 25P01 '
    '(idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_claim(
    id text, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_text_wrapper';
COMMENT ON FUNCTION idem_claim(text, text, boolean, bytea, timestamptz) IS
    'Claims a message for a destination and returns details. outcome: claimed, duplicate, '
    'in_progress (only if wait is false), mismatch (processed with another fingerprint), or '
    'expired (sent_at is before the time since which the ring remembers claims). handled_at: the '
    'time of the first claim. fingerprint: 1 to 64 bytes. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_claim(
    id uuid, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_uuid_wrapper';
COMMENT ON FUNCTION idem_claim(uuid, text, boolean, bytea, timestamptz) IS
    'Claims a message for a destination and returns details. outcome: claimed, duplicate, '
    'in_progress (only if wait is false), mismatch (processed with another fingerprint), or '
    'expired (sent_at is before the time since which the ring remembers claims). handled_at: the '
    'time of the first claim. fingerprint: 1 to 64 bytes. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (this id is the hash of another id), 25006 (standby or read-only '
    'transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_claim_in_block(
    id text, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_in_block_text_wrapper';
COMMENT ON FUNCTION idem_claim_in_block(text, text, boolean, bytea, timestamptz) IS
    'Does the same as idem_claim, but fails outside a transaction block whatever the setting '
    'idem.lone_claims is. For a client that sends BEGIN and the claim without waiting in between. '
    'Use it in a statement of its own: a PL/pgSQL block with EXCEPTION counts as a transaction '
    'block. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash of this id '
    'is the hash of another id), 25006 (standby or read-only transaction), 25P01 (no transaction '
    'block), 55P03 (the message is leased).';

CREATE FUNCTION idem_claim_in_block(
    id uuid, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_in_block_uuid_wrapper';
COMMENT ON FUNCTION idem_claim_in_block(uuid, text, boolean, bytea, timestamptz) IS
    'Does the same as idem_claim, but fails outside a transaction block whatever the setting '
    'idem.lone_claims is. For a client that sends BEGIN and the claim without waiting in between. '
    'Use it in a statement of its own: a PL/pgSQL block with EXCEPTION counts as a transaction '
    'block. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (this id is the hash '
    'of another id), 25006 (standby or read-only transaction), 25P01 (no transaction block), '
    '55P03 (the message is leased).';

CREATE FUNCTION idem_is_claimed(id text, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_is_claimed_wrapper';
COMMENT ON FUNCTION idem_is_claimed(text, text) IS
    'Returns whether a committed transaction or the current one has claimed the message. Writes '
    'nothing, and works on a standby. Errors: 22004 (null argument), 22023 (invalid argument), '
    '23000 (the hash of this id is the hash of another id).';

CREATE FUNCTION idem_is_claimed(id uuid, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_is_claimed_uuid_wrapper';
COMMENT ON FUNCTION idem_is_claimed(uuid, text) IS
    'Returns whether a committed transaction or the current one has claimed the message. Writes '
    'nothing, and works on a standby. Errors: 22004 (null argument), 22023 (invalid argument), '
    '23000 (this id is the hash of another id).';

CREATE FUNCTION idem_forget(id text, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_forget_wrapper';
COMMENT ON FUNCTION idem_forget(text, text) IS
    'Forgets a claim, so that the message can be processed again. Returns false if there is no '
    'claim. The effects stay in the outbox. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 55000 (the current transaction made the claim).';

CREATE FUNCTION idem_forget(id uuid, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_forget_uuid_wrapper';
COMMENT ON FUNCTION idem_forget(uuid, text) IS
    'Forgets a claim, so that the message can be processed again. Returns false if there is no '
    'claim. The effects stay in the outbox. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 23000 (this id is the hash of another id), 25006 (standby or read-only '
    'transaction), 55000 (the current transaction made the claim).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_claim

-- Forbidding COMMIT. The functions are in extension/src/sql_api/commit.rs.

CREATE FUNCTION idem_forbid_commit() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_forbid_commit_wrapper';
COMMENT ON FUNCTION idem_forbid_commit() IS
    'Forbids COMMIT and PREPARE TRANSACTION in the current transaction, until idem_allow_commit '
    'is called in it: they fail with 2D000. As after each error, the transaction can then only be '
    'rolled back. A program calls this function after BEGIN, before it runs code that must not '
    'commit, for example the handler of a message. Writes nothing. ROLLBACK TO SAVEPOINT does not '
    'change it. Errors: 25P01 (no transaction block).';

CREATE FUNCTION idem_allow_commit() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_allow_commit_wrapper';
COMMENT ON FUNCTION idem_allow_commit() IS
    'Allows COMMIT again after idem_forbid_commit. Send it and COMMIT in one query: if it fails, '
    'the server skips the COMMIT. Errors: 25P01 (COMMIT is not forbidden: the transaction in '
    'which idem_forbid_commit was called has ended, or COMMIT is already allowed).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_commit

-- Effects. The functions are in extension/src/sql_api/effects.rs.

CREATE FUNCTION idem_record_effects(id text, destination text, effects jsonb) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_record_effects_wrapper';
COMMENT ON FUNCTION idem_record_effects(text, text, jsonb) IS
    'Records effects with the claim that the current transaction holds, and returns their message '
    'ids. effects: an array of objects, or one object, with the members topic, payload or '
    'payload_base64, and optionally content_type, key, type, headers, message_id and '
    'deliver_after (RFC 3339). At most 10,000 effects. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 55000 (no claim in this transaction).';

CREATE FUNCTION idem_record_effects(id uuid, destination text, effects jsonb) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_record_effects_uuid_wrapper';
COMMENT ON FUNCTION idem_record_effects(uuid, text, jsonb) IS
    'Records effects with the claim that the current transaction holds, and returns their message '
    'ids. effects: an array of objects, or one object, with the members topic, payload or '
    'payload_base64, and optionally content_type, key, type, headers, message_id and '
    'deliver_after (RFC 3339). At most 10,000 effects. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (this id is the hash of another id), 25006 (standby or read-only '
    'transaction), 55000 (no claim in this transaction).';

CREATE FUNCTION idem_try_record(id text, destination text, effects jsonb) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_record_wrapper';
COMMENT ON FUNCTION idem_try_record(text, text, jsonb) IS
    'Claims a message and records its effects, as idem_try_claim and idem_record_effects do. '
    'Returns false, and records nothing, if the message is a duplicate. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another id), '
    '25006 (standby or read-only transaction), 55P03 (the message is leased).';

CREATE FUNCTION idem_try_record(id uuid, destination text, effects jsonb) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_record_uuid_wrapper';
COMMENT ON FUNCTION idem_try_record(uuid, text, jsonb) IS
    'Claims a message and records its effects, as idem_try_claim and idem_record_effects do. '
    'Returns false, and records nothing, if the message is a duplicate. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (this id is the hash of another id), 25006 '
    '(standby or read-only transaction), 55P03 (the message is leased).';

CREATE FUNCTION idem_effects(id text, destination text) RETURNS SETOF idem_effect
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_effects_text_wrapper';
COMMENT ON FUNCTION idem_effects(text, text) IS
    'Returns the effects that the first execution of the message recorded, in order and byte for '
    'byte. The result is current at every isolation level. Works on a standby. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another '
    'id).';

CREATE FUNCTION idem_effects(id uuid, destination text) RETURNS SETOF idem_effect
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_effects_uuid_wrapper';
COMMENT ON FUNCTION idem_effects(uuid, text) IS
    'Returns the effects that the first execution of the message recorded, in order and byte for '
    'byte. The result is current at every isolation level. Works on a standby. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 23000 (this id is the hash of another id).';

CREATE FUNCTION idem_replay_effects(id text, destination text) RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_replay_effects_wrapper';
COMMENT ON FUNCTION idem_replay_effects(text, text) IS
    'Copies the recorded effects of a message into the outbox again, with the same message ids. '
    'Returns their number. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the '
    'hash of this id is the hash of another id), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_replay_effects(id uuid, destination text) RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_replay_effects_uuid_wrapper';
COMMENT ON FUNCTION idem_replay_effects(uuid, text) IS
    'Copies the recorded effects of a message into the outbox again, with the same message ids. '
    'Returns their number. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (this '
    'id is the hash of another id), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_send(
    topic text, payload jsonb, key text DEFAULT NULL, type text DEFAULT NULL,
    headers jsonb DEFAULT NULL, message_id uuid DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_send_wrapper';
COMMENT ON FUNCTION idem_send(text, jsonb, text, text, jsonb, uuid, text) IS
    'Sends a message with a JSON payload that does not result from another message, when the '
    'current transaction commits. Returns its message id. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_send_bytes(
    topic text, payload bytea, key text DEFAULT NULL, type text DEFAULT NULL,
    headers jsonb DEFAULT NULL, message_id uuid DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_send_bytes_wrapper';
COMMENT ON FUNCTION idem_send_bytes(text, bytea, text, text, jsonb, uuid, text) IS
    'Sends a message with a payload of bytes that does not result from another message, when the '
    'current transaction commits. Returns its message id. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_effects

-- Leases. The functions in Rust are in extension/src/sql_api/leases.rs.

CREATE FUNCTION idem_acquire(
    id text, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_text_wrapper';
COMMENT ON FUNCTION idem_acquire(text, text, interval) IS
    'Leases a message for processing outside the transaction: commit, process the message, then '
    'call idem_complete with the token. outcome: see the type idem_lease_outcome. attempt counts '
    'this lease. After in_progress retry after retry_after; a received message is in_progress '
    'too, because idem_next returns it. lease: 1 millisecond to 1 day. Never waits for another '
    'transaction that claims, leases or receives the message, at any isolation level. Errors: '
    '22004 (null argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of '
    'another id), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_acquire(
    id uuid, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_uuid_wrapper';
COMMENT ON FUNCTION idem_acquire(uuid, text, interval) IS
    'Leases a message for processing outside the transaction: commit, process the message, then '
    'call idem_complete with the token. outcome: see the type idem_lease_outcome. attempt counts '
    'this lease. After in_progress retry after retry_after; a received message is in_progress '
    'too, because idem_next returns it. lease: 1 millisecond to 1 day. Never waits for another '
    'transaction that claims, leases or receives the message, at any isolation level. Errors: '
    '22004 (null argument), 22023 (invalid argument), 23000 (this id is the hash of another id), '
    '25006 (standby or read-only transaction).';

CREATE FUNCTION idem_complete(
    id text, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_wrapper';
COMMENT ON FUNCTION idem_complete(text, text, bigint, jsonb) IS
    'Turns the lease that the token proves into the claim, and records the effects, in the '
    'current transaction. Returns the message ids of the effects. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (the hash of this id is the hash of another id), 25006 '
    '(standby or read-only transaction), 55000 (the lease is lost; nothing is written), 55P03 (a '
    'running transaction is claiming the message: try again).';

CREATE FUNCTION idem_complete(
    id uuid, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_uuid_wrapper';
COMMENT ON FUNCTION idem_complete(uuid, text, bigint, jsonb) IS
    'Turns the lease that the token proves into the claim, and records the effects, in the '
    'current transaction. Returns the message ids of the effects. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 55000 (the lease is lost; nothing is written), 55P03 (a running '
    'transaction is claiming the message: try again).';

CREATE FUNCTION idem_extend(
    id          text,
    destination text,
    token       bigint,
    lease       interval DEFAULT '30 seconds'
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    p            idem.pending_0;
BEGIN
    PERFORM idem.check_lease(lease);
    PERFORM idem.check_lease_transaction();
    table_number := idem.enter_pending();
    p := idem.held_pending(table_number, idem_extend.id, idem_extend.destination,
                           idem_extend.token);
    p.due_at := clock_timestamp() + lease;
    PERFORM idem.write_pending(table_number, p);
END
$$;
COMMENT ON FUNCTION idem_extend(text, text, bigint, interval) IS
    'Extends the lease that the token proves: it ends after the interval lease (1 millisecond to '
    '1 day) from now. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash of '
    'this id is the hash of another id), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (the lease is lost).';

CREATE FUNCTION idem_extend(
    id          uuid,
    destination text,
    token       bigint,
    lease       interval DEFAULT '30 seconds'
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_extend(id::text, destination, token, lease);
COMMENT ON FUNCTION idem_extend(uuid, text, bigint, interval) IS
    'Extends the lease that the token proves: it ends after the interval lease (1 millisecond to '
    '1 day) from now. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (this id is '
    'the hash of another id), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (the lease is lost).';

CREATE FUNCTION idem_release(
    id          text,
    destination text,
    token       bigint,
    error       text    DEFAULT NULL,
    final       boolean DEFAULT false
) RETURNS interval
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    p            idem.pending_0;
    policy       idem.retry_policy;
    pause        interval;
BEGIN
    IF idem_release.final IS NULL THEN
        RAISE EXCEPTION 'final must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF idem_release.final AND idem_release.error IS NULL THEN
        RAISE EXCEPTION 'error must not be null when final is true'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give the reason why the message must not be retried.';
    END IF;
    PERFORM idem.check_lease_transaction();
    table_number := idem.enter_pending();
    p := idem.held_pending(table_number, idem_release.id, idem_release.destination,
                           idem_release.token);
    IF idem_release.error IS NULL THEN
        -- The message was not processed, so the attempt does not count. If the last error belongs
        -- to this attempt, the attempt had ended before: the lease is an exhausted one, for which
        -- idem_acquire counted no attempt.
        IF (p.errors -> -1 ->> 'attempt')::integer IS DISTINCT FROM p.attempt THEN
            p.attempt := p.attempt - 1;
        END IF;
        p.state := 'r';
        pause := '0';
    ELSE
        policy := idem.policy_of(p.destination);
        final := idem_release.final OR idem_release.error LIKE ANY (policy.final_errors);
        p.errors := idem.note_failure(p.errors, p.attempt, idem_release.error, final);
        p.state := 'w';
        pause := CASE WHEN NOT final AND p.attempt < policy.max_attempts
                      THEN idem.pause_after(policy, p.attempt) END;
    END IF;
    IF pause IS NULL AND p.payload_slice IS NOT NULL THEN
        PERFORM idem.make_dead_letter(table_number, p);
    ELSE
        -- The message can be leased again. If no attempt is left, it is a message of a broker
        -- (without a payload): the next idem_acquire returns exhausted, and the consumer calls
        -- idem_bury.
        p.due_at := clock_timestamp() + coalesce(pause, '0');
        PERFORM idem.write_pending(table_number, p);
    END IF;
    PERFORM idem.wake_consumers();
    RETURN pause;
END
$$;
COMMENT ON FUNCTION idem_release(text, text, bigint, text, boolean) IS
    'Releases the lease that the token proves. Returns the time until the next attempt, or null '
    'if there is none. Without an error the attempt does not count and the message is due at '
    'once; the release of an exhausted lease changes no count. With an error the attempt counts, '
    'and the message waits for its back-off. A received message moves to the dead letters if no '
    'attempt is left, if final is true, or if the error matches a pattern of final_errors; for a '
    'message of a broker the next idem_acquire then returns exhausted. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another id), '
    '25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 (the lease is '
    'lost).';

CREATE FUNCTION idem_release(
    id          uuid,
    destination text,
    token       bigint,
    error       text    DEFAULT NULL,
    final       boolean DEFAULT false
) RETURNS interval
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_release(id::text, destination, token, error, final);
COMMENT ON FUNCTION idem_release(uuid, text, bigint, text, boolean) IS
    'Releases the lease that the token proves. Returns the time until the next attempt, or null '
    'if there is none. Without an error the attempt does not count and the message is due at '
    'once; the release of an exhausted lease changes no count. With an error the attempt counts, '
    'and the message waits for its back-off. A received message moves to the dead letters if no '
    'attempt is left, if final is true, or if the error matches a pattern of final_errors; for a '
    'message of a broker the next idem_acquire then returns exhausted. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (this id is the hash of another id), 25000 (not '
    'READ COMMITTED), 25006 (standby or read-only transaction), 55000 (the lease is lost).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_leases

-- The durable inbox. The functions are in extension/src/sql_api/inbox.rs.

CREATE FUNCTION idem_receive(
    id text, destination text, payload jsonb, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_text_wrapper';
COMMENT ON FUNCTION idem_receive(text, text, jsonb, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is already '
    'received, dead or claimed. A message of a broker that is leased or waits for a retry is '
    'stored: it keeps its lease and its attempts, and idem_next returns it after the end of the '
    'lease or of the back-off. Waits for the end of a transaction that claims, completes or '
    'receives the message. key: the ordering key. Messages with the same ordering key are '
    'processed one at a time, in the order of arrival. deliver_after: idem_next does not return '
    'the message before this time, unless it was leased before. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (the hash of this id is the hash of another id), 25006 '
    '(standby or read-only transaction).';

CREATE FUNCTION idem_receive(
    id uuid, destination text, payload jsonb, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_uuid_wrapper';
COMMENT ON FUNCTION idem_receive(uuid, text, jsonb, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is already '
    'received, dead or claimed. A message of a broker that is leased or waits for a retry is '
    'stored: it keeps its lease and its attempts, and idem_next returns it after the end of the '
    'lease or of the back-off. Waits for the end of a transaction that claims, completes or '
    'receives the message. key: the ordering key. Messages with the same ordering key are '
    'processed one at a time, in the order of arrival. deliver_after: idem_next does not return '
    'the message before this time, unless it was leased before. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (this id is the hash of another id), 25006 (standby or '
    'read-only transaction).';

CREATE FUNCTION idem_receive_bytes(
    id text, destination text, payload bytea, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_bytes_text_wrapper';
COMMENT ON FUNCTION idem_receive_bytes(text, text, bytea, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is already '
    'received, dead or claimed. A message of a broker that is leased or waits for a retry is '
    'stored: it keeps its lease and its attempts, and idem_next returns it after the end of the '
    'lease or of the back-off. Waits for the end of a transaction that claims, completes or '
    'receives the message. key: the ordering key. Messages with the same ordering key are '
    'processed one at a time, in the order of arrival. deliver_after: idem_next does not return '
    'the message before this time, unless it was leased before. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (the hash of this id is the hash of another id), 25006 '
    '(standby or read-only transaction).';

CREATE FUNCTION idem_receive_bytes(
    id uuid, destination text, payload bytea, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_bytes_uuid_wrapper';
COMMENT ON FUNCTION idem_receive_bytes(uuid, text, bytea, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is already '
    'received, dead or claimed. A message of a broker that is leased or waits for a retry is '
    'stored: it keeps its lease and its attempts, and idem_next returns it after the end of the '
    'lease or of the back-off. Waits for the end of a transaction that claims, completes or '
    'receives the message. key: the ordering key. Messages with the same ordering key are '
    'processed one at a time, in the order of arrival. deliver_after: idem_next does not return '
    'the message before this time, unless it was leased before. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (this id is the hash of another id), 25006 (standby or '
    'read-only transaction).';

CREATE FUNCTION idem_next(
    destination  text,
    max_messages integer  DEFAULT 1,
    lease        interval DEFAULT '30 seconds',
    max_bytes    bigint   DEFAULT 16777216
)
RETURNS TABLE (
    token         bigint,
    seq           bigint,
    id            text,
    key           text,
    type          text,
    payload       bytea,
    content_type  text,
    headers       jsonb,
    traceparent   text,
    attempt       integer,
    received_at   timestamptz,
    last_error    text,
    lease_expired boolean
)
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'idem_next_wrapper';
COMMENT ON FUNCTION idem_next(text, integer, interval, bigint) IS
    'Leases due messages of the durable inbox of a destination, and returns them in order. '
    'Returns at most max_messages messages (1 to 10,000) with at most max_bytes bytes of payloads '
    'and headers (1 to 1 GB), but the first message whatever its size. A smaller result does not '
    'mean that no other message is due. A message that does not fit is not leased, but its row '
    'stays locked until the transaction ends. Of the messages with one ordering key only the '
    'first is returned, and none while another one is leased, or while an earlier one waits for a '
    'retry. A message with an expired lease (lease_expired) is returned alone. Finish each '
    'message with idem_complete, or with idem_try_claim in the business transaction, or release '
    'it with idem_release. A message that is not finished is returned again after its lease, '
    'until no attempt is left. lease: 1 millisecond to 1 day. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction).';

CREATE FUNCTION idem_next_wait(destination text, timeout_ms integer DEFAULT 1000) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'idem_next_wait_wrapper';
COMMENT ON FUNCTION idem_next_wait(text, integer) IS
    'Waits at most timeout_ms milliseconds until idem_next can return a message of the '
    'destination, or can move an exhausted message to the dead letters. Returns true if it can. '
    'Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_inbox

-- The journal of external calls. The functions are in extension/src/sql_api/journal.rs.

CREATE FUNCTION idem_begin_call(
    id text, destination text, step text, request jsonb DEFAULT NULL, token bigint DEFAULT NULL,
    OUT state idem_call_state, OUT idempotency_key text, OUT response jsonb, OUT attempt integer,
    OUT begun_at timestamptz, OUT error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_begin_call_text_wrapper';
COMMENT ON FUNCTION idem_begin_call(text, text, text, jsonb, bigint) IS
    'Begins a step (1 to 255 bytes) of a message that is an external call: commit, then send the '
    'request with idempotency_key, which is the same for every attempt. state: new (send the '
    'request), unknown (an earlier attempt may have had its effect; begun_at is the time of the '
    'first such attempt), done (response is the recorded response), failed (the call failed for '
    'good with this error). attempt: the number of this attempt. Waits for a concurrent caller. '
    'token: that of the lease under which the message is processed. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the step was begun with another request), 25006 '
    '(standby or read-only transaction), 55000 (the token does not hold the lease).';

CREATE FUNCTION idem_begin_call(
    id uuid, destination text, step text, request jsonb DEFAULT NULL, token bigint DEFAULT NULL,
    OUT state idem_call_state, OUT idempotency_key text, OUT response jsonb, OUT attempt integer,
    OUT begun_at timestamptz, OUT error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_begin_call_uuid_wrapper';
COMMENT ON FUNCTION idem_begin_call(uuid, text, text, jsonb, bigint) IS
    'Begins a step (1 to 255 bytes) of a message that is an external call: commit, then send the '
    'request with idempotency_key, which is the same for every attempt. state: new (send the '
    'request), unknown (an earlier attempt may have had its effect; begun_at is the time of the '
    'first such attempt), done (response is the recorded response), failed (the call failed for '
    'good with this error). attempt: the number of this attempt. Waits for a concurrent caller. '
    'token: that of the lease under which the message is processed. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the step was begun with another request), 25006 '
    '(standby or read-only transaction), 55000 (the token does not hold the lease).';

CREATE FUNCTION idem_finish_call(
    id text, destination text, step text, response jsonb DEFAULT NULL
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_finish_call_text_wrapper';
COMMENT ON FUNCTION idem_finish_call(text, text, text, jsonb) IS
    'Records the response of an external call that was begun. Every later attempt gets this '
    'response. Recording the same response again changes nothing. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25006 (standby or read-only transaction), 55000 (not begun, or '
    'ended with another result).';

CREATE FUNCTION idem_finish_call(
    id uuid, destination text, step text, response jsonb DEFAULT NULL
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_finish_call_uuid_wrapper';
COMMENT ON FUNCTION idem_finish_call(uuid, text, text, jsonb) IS
    'Records the response of an external call that was begun. Every later attempt gets this '
    'response. Recording the same response again changes nothing. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25006 (standby or read-only transaction), 55000 (not begun, or '
    'ended with another result).';

CREATE FUNCTION idem_fail_call(
    id text, destination text, step text, error text, retryable boolean DEFAULT true
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_call_text_wrapper';
COMMENT ON FUNCTION idem_fail_call(text, text, text, text, boolean) IS
    'Records that an attempt of an external call failed. error: at most 8,192 bytes. retryable: '
    'true if the attempt certainly had no effect. It is then taken back, and the call is new '
    'again unless an earlier attempt may have had its effect. false: the call failed for good and '
    'is never repeated. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby '
    'or read-only transaction), 55000 (not begun, or ended with another result).';

CREATE FUNCTION idem_fail_call(
    id uuid, destination text, step text, error text, retryable boolean DEFAULT true
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_call_uuid_wrapper';
COMMENT ON FUNCTION idem_fail_call(uuid, text, text, text, boolean) IS
    'Records that an attempt of an external call failed. error: at most 8,192 bytes. retryable: '
    'true if the attempt certainly had no effect. It is then taken back, and the call is new '
    'again unless an earlier attempt may have had its effect. false: the call failed for good and '
    'is never repeated. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby '
    'or read-only transaction), 55000 (not begun, or ended with another result).';

CREATE FUNCTION idem_calls(
    id text, destination text
) RETURNS TABLE (
    step text, state idem_call_state, attempt integer, begun_at timestamptz, ended_at timestamptz,
    response jsonb, error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_calls_text_wrapper';
COMMENT ON FUNCTION idem_calls(text, text) IS
    'Returns the external calls of a message, in the order in which they were first begun. The '
    'result is current at every isolation level. Works on a standby. Errors: 22004 (null '
    'argument), 22023 (invalid argument).';

CREATE FUNCTION idem_calls(
    id uuid, destination text
) RETURNS TABLE (
    step text, state idem_call_state, attempt integer, begun_at timestamptz, ended_at timestamptz,
    response jsonb, error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_calls_uuid_wrapper';
COMMENT ON FUNCTION idem_calls(uuid, text) IS
    'Returns the external calls of a message, in the order in which they were first begun. The '
    'result is current at every isolation level. Works on a standby. Errors: 22004 (null '
    'argument), 22023 (invalid argument).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_journal

-- Failed messages: the retry policy of a destination, and the dead letters.

CREATE FUNCTION idem_configure_retries(
    destination  text,
    max_attempts integer  DEFAULT NULL,
    base         interval DEFAULT NULL,
    factor       float8   DEFAULT NULL,
    cap          interval DEFAULT NULL,
    jitter       float8   DEFAULT NULL,
    final_errors text[]   DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p       idem.retry_policy := idem.default_policy(0);
    pattern text;
BEGIN
    p.max_attempts := coalesce(idem_configure_retries.max_attempts, p.max_attempts);
    p.base := coalesce(idem_configure_retries.base, p.base);
    p.factor := coalesce(idem_configure_retries.factor, p.factor);
    p.cap := coalesce(idem_configure_retries.cap, p.cap);
    p.jitter := coalesce(idem_configure_retries.jitter, p.jitter);
    p.final_errors := coalesce(idem_configure_retries.final_errors, p.final_errors);
    IF p.max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts is %', p.max_attempts
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1000.';
    ELSIF p.base NOT BETWEEN '0' AND '1 day' THEN
        RAISE EXCEPTION 'base is %', p.base
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 0 and 1 day.';
    ELSIF p.cap NOT BETWEEN p.base AND interval '30 days' OR p.cap <= '0' THEN
        RAISE EXCEPTION 'cap is %', p.cap
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be positive, not below base, and at most 30 days.';
    ELSIF NOT p.factor BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'factor is %', p.factor
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1000.';
    ELSIF NOT p.jitter BETWEEN 0 AND 1 THEN
        RAISE EXCEPTION 'jitter is %', p.jitter
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 0 and 1: the share of a back-off that is random.';
    END IF;
    FOREACH pattern IN ARRAY p.final_errors LOOP
        PERFORM idem.check_error_like(pattern, 'a pattern of final_errors');
    END LOOP;
    p.destination := idem.intern_destination(idem_configure_retries.destination);
    INSERT INTO idem.retry_policy
           (destination, max_attempts, base, factor, cap, jitter, final_errors)
    VALUES (p.destination, p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.final_errors)
    ON CONFLICT ON CONSTRAINT retry_policy_pkey DO UPDATE
       SET max_attempts = excluded.max_attempts,
           base = excluded.base,
           factor = excluded.factor,
           cap = excluded.cap,
           jitter = excluded.jitter,
           final_errors = excluded.final_errors;
END
$$;
COMMENT ON FUNCTION idem_configure_retries(
    text, integer, interval, float8, interval, float8, text[]
) IS
    'Sets how a destination retries failed messages. max_attempts: the number of attempts of a '
    'message, 1 to 1,000 (default 10). The back-off after a failed attempt is base (0 to 1 day, '
    'default 1 second) * factor (1 to 1,000, default 2) ^ (attempt - 1), at most cap (up to 30 '
    'days, default 10 minutes). jitter: the share of the back-off that is random, 0 to 1 (default '
    '0.2). final_errors: LIKE patterns (default none); a message is not retried after an error '
    'that matches one of them. An argument that is null or omitted gets its default. Errors: '
    '22004 (null argument), 22023 (invalid argument), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_bury(
    id           text,
    destination  text,
    token        bigint,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    table_number integer;
    p            idem.pending_0;
BEGIN
    IF payload IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'payload and error must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers is %', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON object.';
    ELSIF octet_length(idem_bury.key) NOT BETWEEN 1 AND 1024
          OR octet_length(type) NOT BETWEEN 1 AND 255
          OR octet_length(content_type) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'key, type or content_type is empty or too long'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A key has 1 to 1024 bytes, type and content_type 1 to 255.';
    END IF;
    PERFORM idem.check_lease_transaction();
    table_number := idem.enter_pending();
    p := idem.held_pending(table_number, idem_bury.id, idem_bury.destination, idem_bury.token);
    PERFORM idem.check_letter_room(idem_bury.destination, payload);
    -- For an exhausted message the caller passes the error that idem_acquire returned, which is
    -- recorded already.
    IF NOT idem.is_last_failure(p.errors, p.attempt, idem_bury.error) THEN
        p.errors := idem.note_failure(p.errors, p.attempt, idem_bury.error, false);
    END IF;
    p.order_key := coalesce(idem_bury.key, p.order_key);
    PERFORM idem.write_dead_letter(p, idem_bury.payload,
                                   coalesce(idem_bury.content_type, 'application/octet-stream'),
                                   idem_bury.type, idem_bury.headers,
                                   idem_bury.headers ->> 'traceparent');
    p.due_at := 'infinity';
    p.state := 'd';
    p.payload_slice := NULL;
    PERFORM idem.write_pending(table_number, p);
END
$$;
COMMENT ON FUNCTION idem_bury(text, text, bigint, bytea, text, jsonb, text, text, text) IS
    'Moves a message of a broker to the dead letters. The token of idem_acquire proves the lease. '
    'payload: at most 64 MiB. headers: a JSON object. key: the ordering key, 1 to 1,024 bytes. '
    'type and content_type (default application/octet-stream): 1 to 255 bytes. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another '
    'id), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 53400 '
    '(idem.max_dead_letters), 54000 (the payload is too large), 55000 (the lease is lost).';

CREATE FUNCTION idem_bury(
    id           uuid,
    destination  text,
    token        bigint,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_bury(id::text, destination, token, payload, error, headers, key, type,
                             content_type);
COMMENT ON FUNCTION idem_bury(uuid, text, bigint, bytea, text, jsonb, text, text, text) IS
    'Moves a message of a broker to the dead letters. The token of idem_acquire proves the lease. '
    'payload: at most 64 MiB. headers: a JSON object. key: the ordering key, 1 to 1,024 bytes. '
    'type and content_type (default application/octet-stream): 1 to 255 bytes. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 23000 (this id is the hash of another id), 25000 '
    '(not READ COMMITTED), 25006 (standby or read-only transaction), 53400 '
    '(idem.max_dead_letters), 54000 (the payload is too large), 55000 (the lease is lost).';

-- The lease and the dead letter are written in one statement, so a failure counts no attempt.
CREATE FUNCTION idem_reject(
    id           text,
    destination  text,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL,
    source       text  DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    identity text;
    lease    record;
    carried  jsonb := headers;
BEGIN
    IF payload IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'payload and error must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers is %', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON object.';
    ELSIF octet_length(source) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'source is empty or too long'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give the queue, subject or topic of the message, of 1 to 1024 bytes.';
    END IF;
    PERFORM idem.check_lease_transaction();
    identity := coalesce(
        idem_reject.id,
        idem.hash_of_message(source, headers, idem_reject.key, idem_reject.type, payload)::text);
    IF source IS NOT NULL THEN
        carried := coalesce(headers, '{}') || jsonb_build_object('idem-source-topic', source);
    END IF;
    LOOP
        SELECT a.outcome, a.token INTO lease
          FROM @extschema@.idem_acquire(identity, idem_reject.destination,
                                        '1 minute'::interval) a;
        EXIT WHEN lease.outcome <> 'in_progress'
               OR NOT idem.end_back_off(identity, idem_reject.destination);
    END LOOP;
    IF lease.outcome IN ('duplicate', 'dead') THEN
        RETURN false;
    ELSIF lease.outcome = 'in_progress' THEN
        RAISE EXCEPTION 'message "%" of destination "%" is in progress',
            identity, idem_reject.destination
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Another process holds its lease or is claiming it, or it was received '
                         'and idem_next returns it: reject it again later.';
    END IF;
    PERFORM @extschema@.idem_bury(
        identity, idem_reject.destination, lease.token, payload, error, carried,
        idem_reject.key, idem_reject.type, idem_reject.content_type);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_reject(text, text, bytea, text, jsonb, text, text, text, text) IS
    'Stores a message of a broker that is not leased as a dead letter, also while it waits for a '
    'retry. Acknowledge the message to its broker after the commit. Returns false if the message '
    'is a dead letter already or was processed. A message without an id (null) gets a UUID, a '
    'hash of source, headers, key, type and payload. source: the queue, subject or topic of the '
    'message, 1 to 1,024 bytes; it is stored as the header idem-source-topic. payload: at most 64 '
    'MiB. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash of this id is '
    'the hash of another id), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 53400 (idem.max_dead_letters), 54000 (the payload is too large), 55P03 (the '
    'message is in progress).';

CREATE FUNCTION idem_reject(
    id           uuid,
    destination  text,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL,
    source       text  DEFAULT NULL
) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_reject(id::text, destination, payload, error, headers, key, type,
                               content_type, source);
COMMENT ON FUNCTION idem_reject(uuid, text, bytea, text, jsonb, text, text, text, text) IS
    'Stores a message of a broker that is not leased as a dead letter, also while it waits for a '
    'retry. Acknowledge the message to its broker after the commit. Returns false if the message '
    'is a dead letter already or was processed. A message without an id (null) gets a UUID, a '
    'hash of source, headers, key, type and payload. source: the queue, subject or topic of the '
    'message, 1 to 1,024 bytes; it is stored as the header idem-source-topic. payload: at most 64 '
    'MiB. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (this id is the hash of '
    'another id), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 53400 '
    '(idem.max_dead_letters), 54000 (the payload is too large), 55P03 (the message is in '
    'progress).';

CREATE FUNCTION idem_requeue(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    p            idem.pending_0;
    letter       idem.dead_letter;
BEGIN
    -- These two calls only check the arguments. They come first, so that a wrong argument is
    -- reported at every isolation level.
    PERFORM idem.key_of(idem_requeue.id), idem.find_destination(idem_requeue.destination);
    PERFORM idem.check_lease_transaction();
    table_number := idem.enter_pending();
    p := idem.find_pending(table_number, idem.key_of(idem_requeue.id),
                           idem.find_destination(idem_requeue.destination));
    letter := idem.find_letter(idem_requeue.id, idem_requeue.destination, true);
    RETURN letter.key IS NOT NULL AND idem.requeue_letter(table_number, p, letter);
END
$$;
COMMENT ON FUNCTION idem_requeue(text, text) IS
    'Makes a dead letter a pending message again: it is due now, after all other messages of its '
    'ordering key, and has all its attempts. Returns false if there is no dead letter, or if the '
    'message was claimed meanwhile (then its dead letter is deleted). Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another id), '
    '25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55P03 (another '
    'transaction is claiming the message).';

CREATE FUNCTION idem_requeue(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_requeue(id::text, destination);
COMMENT ON FUNCTION idem_requeue(uuid, text) IS
    'Makes a dead letter a pending message again: it is due now, after all other messages of its '
    'ordering key, and has all its attempts. Returns false if there is no dead letter, or if the '
    'message was claimed meanwhile (then its dead letter is deleted). Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (this id is the hash of another id), 25000 (not '
    'READ COMMITTED), 25006 (standby or read-only transaction), 55P03 (another transaction is '
    'claiming the message).';

CREATE FUNCTION idem_discard(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.key_of(idem_discard.id), idem.find_destination(idem_discard.destination);
    PERFORM idem.check_lease_transaction();
    IF (idem.find_letter(idem_discard.id, idem_discard.destination, false)).key IS NULL THEN
        RETURN false;
    END IF;
    RETURN ((idem.take_letter(idem_discard.id, idem_discard.destination, true)).letter).key
           IS NOT NULL;
END
$$;
COMMENT ON FUNCTION idem_discard(text, text) IS
    'Deletes a dead letter and claims its message, so that the message remains known as '
    'processed. Returns false if there is no dead letter. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (the hash of this id is the hash of another id), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction), 55P03 (the message is leased).';

CREATE FUNCTION idem_discard(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_discard(id::text, destination);
COMMENT ON FUNCTION idem_discard(uuid, text) IS
    'Deletes a dead letter and claims its message, so that the message remains known as '
    'processed. Returns false if there is no dead letter. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (this id is the hash of another id), 25000 (not READ COMMITTED), '
    '25006 (standby or read-only transaction), 55P03 (the message is leased).';

CREATE FUNCTION idem_requeue_all(
    destination  text,
    error_like   text    DEFAULT '%',
    max_messages integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    letter       idem.dead_letter;
    held         record;
    requeued     integer := 0;
BEGIN
    FOR letter IN
        SELECT l.*
          FROM idem.some_letters(idem_requeue_all.destination, error_like, max_messages) l
    LOOP
        table_number := coalesce(table_number, idem.enter_pending());
        BEGIN
            SELECT * INTO held FROM idem.lock_letter(table_number, letter);
            IF held.is_locked AND (held.letter).errors -> -1 ->> 'error' LIKE error_like
               AND idem.requeue_letter(table_number, held.p, held.letter) THEN
                requeued := requeued + 1;
            END IF;
        EXCEPTION
            WHEN lock_not_available THEN
                NULL;  -- another transaction is claiming the message
        END;
    END LOOP;
    RETURN requeued;
END
$$;
COMMENT ON FUNCTION idem_requeue_all(text, text, integer) IS
    'Requeues dead letters of a destination, in the order of arrival and at most max_messages (1 '
    'to 10,000): those with a last error that matches the LIKE pattern error_like. Returns their '
    'number, without messages that were claimed meanwhile. Skips a message that another '
    'transaction holds. See idem_requeue. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_discard_all(
    destination  text,
    error_like   text    DEFAULT '%',
    max_messages integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter    idem.dead_letter;
    discarded integer := 0;
BEGIN
    FOR letter IN
        SELECT l.*
          FROM idem.some_letters(idem_discard_all.destination, error_like, max_messages) l
    LOOP
        IF ((idem.take_letter(coalesce(letter.id, letter.key::text), idem_discard_all.destination,
                              false)).letter).key IS NOT NULL THEN
            discarded := discarded + 1;
        END IF;
    END LOOP;
    RETURN discarded;
END
$$;
COMMENT ON FUNCTION idem_discard_all(text, text, integer) IS
    'Deletes dead letters of a destination, in the order of arrival and at most max_messages (1 '
    'to 10,000): those with a last error that matches the LIKE pattern error_like. Claims their '
    'messages and returns their number. Skips a message that another transaction holds. See '
    'idem_discard. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_forward(id text, destination text, topic text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.key_of(idem_forward.id),
            idem.find_destination(idem_forward.destination),
            idem.check_topic(idem_forward.topic);
    PERFORM idem.check_lease_transaction(), idem.check_has_relay();
    IF (idem.find_letter(idem_forward.id, idem_forward.destination, false)).key IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN idem.forward_letter(idem_forward.id, idem_forward.destination, idem_forward.topic, true);
END
$$;
COMMENT ON FUNCTION idem_forward(text, text, text) IS
    'Sends a dead letter to a topic (1 to 255 bytes): claims its message, records the dead letter '
    'as an effect of the message, and deletes the dead letter. The effect has the payload, key, '
    'type, content type and headers of the dead letter and a new message id, so a consumer that '
    'identifies messages by the message id processes it as a new message. Returns the message id; '
    'null if there is no dead letter, or if its message was processed meanwhile (then the dead '
    'letter is deleted). Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash '
    'of this id is the hash of another id), 25000 (not READ COMMITTED), 25006 (standby or '
    'read-only transaction), 55000 (there is no relay), 55P03 (the message is leased).';

CREATE FUNCTION idem_forward(id uuid, destination text, topic text) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_forward(id::text, destination, topic);
COMMENT ON FUNCTION idem_forward(uuid, text, text) IS
    'Sends a dead letter to a topic (1 to 255 bytes): claims its message, records the dead letter '
    'as an effect of the message, and deletes the dead letter. The effect has the payload, key, '
    'type, content type and headers of the dead letter and a new message id, so a consumer that '
    'identifies messages by the message id processes it as a new message. Returns the message id; '
    'null if there is no dead letter, or if its message was processed meanwhile (then the dead '
    'letter is deleted). Errors: 22004 (null argument), 22023 (invalid argument), 23000 (this id '
    'is the hash of another id), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (there is no relay), 55P03 (the message is leased).';

CREATE FUNCTION idem_forward_all(
    destination  text,
    topic        text,
    error_like   text    DEFAULT '%',
    max_messages integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter    idem.dead_letter;
    forwarded integer := 0;
BEGIN
    PERFORM idem.check_topic(idem_forward_all.topic), idem.check_has_relay();
    FOR letter IN
        SELECT l.*
          FROM idem.some_letters(idem_forward_all.destination, error_like, max_messages) l
    LOOP
        IF idem.forward_letter(coalesce(letter.id, letter.key::text), idem_forward_all.destination,
                               idem_forward_all.topic, false) IS NOT NULL THEN
            forwarded := forwarded + 1;
        END IF;
    END LOOP;
    RETURN forwarded;
END
$$;
COMMENT ON FUNCTION idem_forward_all(text, text, text, integer) IS
    'Sends dead letters of a destination to a topic, in the order of arrival and at most '
    'max_messages (1 to 10,000): those with a last error that matches the LIKE pattern '
    'error_like. Returns their number. Skips a message that another transaction holds. See '
    'idem_forward. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction), 55000 (there is no relay).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_dead_letters

-- The functions of a relay. A relay leases a batch, publishes the batch outside the database, and
-- acknowledges it. Call each function in a short transaction of its own.

CREATE FUNCTION idem_relay_wait(timeout_ms integer DEFAULT 1000) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_relay_wait_wrapper';
COMMENT ON FUNCTION idem_relay_wait(integer) IS
    'Waits at most timeout_ms milliseconds for effects that this session has not waited for '
    'before. Returns true if there may be such effects. A relay calls this function when '
    'idem_relay_next has returned no row. Errors: 22004 (null argument), 22023 (invalid argument).';

CREATE FUNCTION idem_relay_partitions(relay text) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_partitions.relay, 0);
BEGIN
    RETURN this.partitions;
END
$$;
COMMENT ON FUNCTION idem_relay_partitions(text) IS
    'Returns the number of partitions of a relay. The partitions are numbered from 0. Errors: '
    '22004 (null argument), 42704 (no such relay).';

CREATE FUNCTION idem_relay_next(
    relay       text,
    partition   integer  DEFAULT 0,
    max_effects integer  DEFAULT 100,
    lease       interval DEFAULT '30 seconds',
    max_bytes   bigint   DEFAULT 16777216
) RETURNS TABLE (
    token              bigint,
    seq                bigint,
    message_id         uuid,
    topic              text,
    key                text,
    type               text,
    payload            bytea,
    content_type       text,
    headers            jsonb,
    traceparent        text,
    recorded_at        timestamptz,
    source_destination text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    this      idem.relay := idem.check_relay(idem_relay_next.relay, idem_relay_next.partition);
    p         idem.progress;
    chosen_at timestamptz;
BEGIN
    PERFORM idem.check_max_effects(max_effects);
    PERFORM idem.check_max_bytes(max_bytes);
    PERFORM idem.check_lease(lease);

    -- Check for effects before locking the row of the partition, because a row lock assigns a
    -- transaction id and writes WAL.
    IF NOT idem.has_work(this, partition) THEN
        RETURN;
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    LOOP
        p := idem.progress_of(this, partition);
        chosen_at := clock_timestamp();
        IF p.leased_until > chosen_at THEN
            RETURN;  -- another process holds the lease
        END IF;
        PERFORM idem.check_xids(p);

        -- Delayed effects that are due are delivered first.
        IF EXISTS (SELECT 1 FROM idem.delayed d
                    WHERE d.relay = this.id AND d.partition = idem_relay_next.partition
                      AND d.due_at <= chosen_at) THEN
            p := idem.lease_delayed(this, p, chosen_at, lease, max_effects, max_bytes);
            RETURN QUERY
                SELECT p.pos, d.seq, (d.effect).message_id, (d.effect).topic, (d.effect).key,
                       (d.effect).type, (d.effect).payload, (d.effect).content_type,
                       (d.effect).headers, (d.effect).traceparent, (d.effect).recorded_at, x.name
                  FROM idem.delayed d
                  LEFT JOIN idem.destination x ON x.id = (d.effect).source_destination
                 WHERE d.relay = this.id AND d.partition = p.partition AND d.token = p.pos
                   AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                                    WHERE k.relay = this.id AND k.seq = d.seq)
                 ORDER BY d.due_at, d.seq;
        ELSE
            p := idem.lease_batch(this, p, chosen_at, lease, max_effects, max_bytes);
            IF p IS NULL THEN
                RETURN;
            END IF;
            RETURN QUERY
                SELECT p.pos, e.seq, e.message_id, e.topic, e.key, e.type, e.payload,
                       e.content_type, e.headers, e.traceparent, e.recorded_at, x.name
                  FROM idem.effects_between(
                       p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                       pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                       this.partitions, p.partition, max_effects) e
                  LEFT JOIN idem.destination x ON x.id = e.source_destination
                 WHERE e.seq <= p.seq_through
                   AND (e.deliver_after IS NULL OR e.deliver_after <= chosen_at)
                   AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                                    WHERE k.relay = this.id AND k.seq = e.seq)
                 ORDER BY e.seq;
        END IF;
        IF FOUND THEN
            RETURN;
        END IF;
        -- All effects of the batch are delayed or parked. There is nothing to publish, so finish
        -- the batch now.
        PERFORM idem.finish_batch(this, partition, p.pos);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_relay_next(text, integer, integer, interval, bigint) IS
    'Leases the next effects of a partition and returns them in order. The batch has at most '
    'max_effects effects (1 to 10,000) and at most max_bytes bytes of payloads and headers (1 to '
    '1 GB), but always at least one effect. lease: 1 millisecond to 1 day. token proves the lease '
    'to the other functions. Returns no row if there are no effects or another process holds the '
    'lease. After the lease has expired the same effects are returned again. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42704 (no such relay), 25000 (not READ COMMITTED), '
    '25006 (standby or read-only transaction), 55000 (transaction ids went backwards).';

CREATE FUNCTION idem_relay_ack(relay text, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_ack.relay, idem_relay_ack.partition);
BEGIN
    PERFORM idem.lock_partition(this.id, partition);
    PERFORM idem.finish_batch(this, partition, token);
END
$$;
COMMENT ON FUNCTION idem_relay_ack(text, integer, bigint) IS
    'Acknowledges the batch that the token leases, after its effects are published. The cursor '
    'moves past the batch. Errors: 22004 (null argument), 22023 (invalid argument), 42704 (no '
    'such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 '
    '(stale token, or transaction ids went backwards).';

CREATE FUNCTION idem_relay_extend(
    relay     text,
    partition integer,
    token     bigint,
    lease     interval DEFAULT '30 seconds'
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_extend.relay, idem_relay_extend.partition);
    p    idem.progress;
BEGIN
    PERFORM idem.check_lease(lease);
    PERFORM idem.lock_partition(this.id, partition);
    p := idem.held_batch(this, partition, token);
    -- written_at does not change, because it is the time that decided which effects of the batch
    -- are due.
    p.leased_until := clock_timestamp() + lease;
    p.pos := idem.append_progress(p);
    IF p.from_delayed THEN
        UPDATE idem.delayed d SET token = p.pos
         WHERE d.relay = this.id AND d.partition = idem_relay_extend.partition
           AND d.token = idem_relay_extend.token;
    END IF;
    RETURN p.pos;
END
$$;
COMMENT ON FUNCTION idem_relay_extend(text, integer, bigint, interval) IS
    'Extends the lease of a batch: it ends after the interval lease (1 millisecond to 1 day) from '
    'now. Returns the new token; the old one is no longer valid. With 1 millisecond the batch is '
    'released and returned again at once. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (stale token, or transaction ids went backwards).';

CREATE FUNCTION idem_relay_park(
    relay      text,
    partition  integer,
    token      bigint,
    message_id uuid,
    error      text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_park.relay, idem_relay_park.partition);
BEGIN
    IF message_id IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'message_id and error must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(error) > 8192 THEN
        RAISE EXCEPTION 'error has % bytes', octet_length(error)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must have at most 8192 bytes: truncate it.';
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    IF NOT idem.park(this, idem.held_batch(this, partition, token), message_id, NULL, error)
       AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                        WHERE k.relay = this.id
                          AND (k.effect).message_id = idem_relay_park.message_id) THEN
        RAISE EXCEPTION 'message % is not in the batch that token % leases', message_id, token
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Park effects between idem_relay_next and idem_relay_ack.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem_relay_park(text, integer, bigint, uuid, text) IS
    'Parks one effect of the leased batch: stores it with its error (at most 8,192 bytes), so '
    'that the other effects of the partition are delivered. See the view idem.parked, '
    'idem_relay_unpark and idem_relay_discard. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (stale token, or transaction ids went backwards).';

CREATE FUNCTION idem_relay_unpark(relay text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_unpark.relay, 0);
BEGIN
    IF message_id IS NULL THEN
        RAISE EXCEPTION 'message_id must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    WITH back AS (
        DELETE FROM idem.parked_effect k
         WHERE k.relay = this.id AND (k.effect).message_id = idem_relay_unpark.message_id
        RETURNING k.*
    )
    INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
    SELECT b.relay, b.partition, clock_timestamp(), b.effect, b.seq FROM back b;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem_relay_unpark(text, uuid) IS
    'Unparks an effect, so that its relay delivers it next. Returns false if no effect with this '
    'message id is parked. Errors: 22004 (null argument), 42704 (no such relay), 25006 (standby '
    'or read-only transaction).';

CREATE FUNCTION idem_relay_unpark_all(
    relay       text,
    error_like  text    DEFAULT '%',
    max_effects integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- All effects get the same due_at, so that they are delivered in the order of their seq.
    now_wall timestamptz := clock_timestamp();
    unparked integer;
BEGIN
    INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
    SELECT k.relay, k.partition, now_wall, k.effect, k.seq
      FROM idem.take_parked(idem_relay_unpark_all.relay, error_like, max_effects) k;
    GET DIAGNOSTICS unparked = ROW_COUNT;
    RETURN unparked;
END
$$;
COMMENT ON FUNCTION idem_relay_unpark_all(text, text, integer) IS
    'Unparks effects, so that their relay delivers them next: the oldest ones, at most '
    'max_effects (1 to 10,000), with an error that matches the LIKE pattern error_like. Returns '
    'their number. Errors: 22004 (null argument), 22023 (invalid argument), 42704 (no such '
    'relay), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_relay_discard(relay text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_discard.relay, 0);
BEGIN
    IF message_id IS NULL THEN
        RAISE EXCEPTION 'message_id must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    DELETE FROM idem.parked_effect k
     WHERE k.relay = this.id AND (k.effect).message_id = idem_relay_discard.message_id;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem_relay_discard(text, uuid) IS
    'Deletes a parked effect, so that this relay never delivers it. Returns false if no effect '
    'with this message id is parked. An effect of a batch that is not acknowledged yet can be '
    'delivered again. Errors: 22004 (null argument), 42704 (no such relay), 25006 (standby or '
    'read-only transaction).';

CREATE FUNCTION idem_relay_discard_all(
    relay       text,
    error_like  text    DEFAULT '%',
    max_effects integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT count(*)
              FROM idem.take_parked(idem_relay_discard_all.relay, error_like, max_effects));
END
$$;
COMMENT ON FUNCTION idem_relay_discard_all(text, text, integer) IS
    'Deletes parked effects of a relay: the oldest ones, at most max_effects (1 to 10,000), with '
    'an error that matches the LIKE pattern error_like. Returns their number. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42704 (no such relay), 25006 (standby or read-only '
    'transaction).';

CREATE FUNCTION idem_create_relay(
    name        text,
    partitions  integer DEFAULT 1,
    from_oldest boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    new_id integer;
    seq_now bigint;
BEGIN
    IF name IS NULL OR partitions IS NULL OR from_oldest IS NULL THEN
        RAISE EXCEPTION 'name, partitions and from_oldest must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the name of the relay has % bytes', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    ELSIF partitions NOT BETWEEN 1 AND 256 THEN
        RAISE EXCEPTION 'partitions is %', partitions
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 256.';
    END IF;
    seq_now := idem.last_outbox_seq();
    INSERT INTO idem.relay (name, partitions, start_snapshot, start_floor)
    VALUES (idem_create_relay.name, idem_create_relay.partitions,
            CASE WHEN from_oldest THEN '1:1:' ELSE idem.full_snapshot() END,
            CASE WHEN from_oldest THEN 0 ELSE seq_now END)
    RETURNING id INTO new_id;
    INSERT INTO idem.relay_partition (relay, partition)
    SELECT new_id, n FROM generate_series(0, idem_create_relay.partitions - 1) n;
EXCEPTION
    WHEN unique_violation THEN
        RAISE EXCEPTION 'relay "%" already exists', name
            USING ERRCODE = 'duplicate_object',
                  HINT = 'To change its partitions, let it deliver all effects, drop it and create '
                         'it again.';
END
$$;
COMMENT ON FUNCTION idem_create_relay(text, integer, boolean) IS
    'Creates a relay. It reads every effect that is recorded from now on or, if from_oldest is '
    'true, from the oldest effect in the outbox. name: 1 to 255 bytes. partitions (1 to 256): the '
    'effects of one key are in one partition and are delivered in order. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42710 (the relay already exists), 25006 (standby or '
    'read-only transaction).';

CREATE FUNCTION idem_drop_relay(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_drop_relay.name, 0);
BEGIN
    -- The row of the relay that CREATE EXTENSION creates is kept, because a restore would create
    -- that relay again.
    IF this.id = 1 THEN
        UPDATE idem.relay r SET dropped_at = now() WHERE r.id = this.id;
    END IF;
    DELETE FROM idem.relay r WHERE r.id <> 1 AND (r.id = this.id OR r.dropped_at IS NOT NULL);
    DELETE FROM idem.relay_partition p WHERE p.relay = this.id;
    DELETE FROM idem.delayed d WHERE d.relay = this.id;
    DELETE FROM idem.parked_effect k WHERE k.relay = this.id;
END
$$;
COMMENT ON FUNCTION idem_drop_relay(text) IS
    'Drops a relay with its delayed and its parked effects. The outbox no longer keeps effects '
    'for it. Errors: 22004 (null argument), 42704 (no such relay), 25006 (standby or read-only '
    'transaction).';

CREATE FUNCTION idem_repair_relays() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part         record;
    p            idem.progress;
    snapshot_now pg_snapshot;
    seq_now      bigint;
    moved        bigint := 0;
    affected     bigint;
BEGIN
    PERFORM idem.lock_partition(r.relay, r.partition)
       FROM (SELECT * FROM idem.relay_partition ORDER BY relay, partition) r;
    LOCK TABLE idem.outbox_0, idem.outbox_1, idem.outbox_2, idem.outbox_3 IN EXCLUSIVE MODE;
    seq_now := idem.last_outbox_seq();
    snapshot_now := idem.full_snapshot();
    FOR part IN
        SELECT r AS relay, rp.partition
          FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- Effects recorded since the restore have low transaction ids and would be treated as
        -- delivered. Their sequence numbers, which continue after those of the dump, identify them.
        -- Effects just above the floor can be delivered again, although they were acknowledged.
        INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
        SELECT (part.relay).id, part.partition, greatest(o.deliver_after, now()), o, o.seq
          FROM idem.outbox_row o
         WHERE o.partition_hash % (part.relay).partitions = part.partition
           AND NOT (pg_visible_in_snapshot(o.tx, p.snapshot_from) AND o.seq <= p.floor_from)
           AND NOT (p.snapshot_to IS NOT NULL AND pg_visible_in_snapshot(o.tx, p.snapshot_to)
                    AND o.seq <= p.seq_after)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS affected = ROW_COUNT;
        moved := moved + affected;
        p.snapshot_to := snapshot_now;
        p.floor_to := seq_now;
        p.leased_until := NULL;
        p.seq_through := NULL;
        p.exhausted := false;
        p.deferring := false;
        p.from_delayed := false;
        p.written_at := clock_timestamp();
        PERFORM idem.append_progress(idem.close_pair(p));
    END LOOP;
    -- 3 is the first normal transaction id. Every snapshot of this server sees this transaction as
    -- ended, so the continued cursors treat each effect as delivered. A relay that starts at the
    -- oldest effect ('1:1:') still reads all effects.
    UPDATE idem.outbox_0 SET tx = '3';
    UPDATE idem.outbox_1 SET tx = '3';
    UPDATE idem.outbox_2 SET tx = '3';
    UPDATE idem.outbox_3 SET tx = '3';
    RETURN moved;
END
$$;
COMMENT ON FUNCTION idem_repair_relays() IS
    'Repairs the relays after a restore into a cluster with lower transaction ids. Stop producers '
    'and relays before. The effects that a relay has not acknowledged become its delayed effects, '
    'which are delivered first, and its cursor continues with the transaction ids of this '
    'cluster. Returns the number of these effects. Errors: 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction).';

CREATE FUNCTION idem_hand_over(
    relay       text,
    topics      text[],
    partition   integer DEFAULT 0,
    max_effects integer DEFAULT 1000,
    max_bytes   bigint  DEFAULT 16777216
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this      idem.relay := idem.check_relay(idem_hand_over.relay, idem_hand_over.partition);
    effect    record;
    token     bigint;
    effects   integer;
    receiving boolean;
    at_most   integer := max_effects;
    refused   bigint[] := '{}';
    reasons   text[] := '{}';
BEGIN
    IF topics IS NULL OR array_position(topics, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'topics and each topic must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    -- The batch, its messages and its acknowledgement are one transaction, so no other transaction
    -- sees the lease. If an effect cannot be received, the batch is rolled back. The next attempt
    -- leases a batch that ends with this effect, and parks the effect.
    LOOP
        effects := 0;
        receiving := false;
        BEGIN
            FOR effect IN
                SELECT *
                  FROM @extschema@.idem_relay_next(idem_hand_over.relay, partition, at_most,
                                                   '1 minute'::interval,
                                                   idem_hand_over.max_bytes)
            LOOP
                effects := effects + 1;
                token := effect.token;
                IF effect.seq = ANY (refused) THEN
                    PERFORM idem.park(this, idem.held_batch(this, partition, token), NULL,
                                      effect.seq,
                                      reasons[array_position(refused, effect.seq)]);
                ELSIF effect.topic = ANY (topics) THEN
                    receiving := true;
                    PERFORM @extschema@.idem_receive_bytes(
                        effect.message_id, effect.topic, effect.payload,
                        idem.with_trace(effect.headers, effect.traceparent), effect.key,
                        NULL::timestamptz, effect.type, effect.content_type);
                    receiving := false;
                END IF;
            END LOOP;
            IF effects > 0 THEN
                PERFORM @extschema@.idem_relay_ack(idem_hand_over.relay, partition, token);
            END IF;
            RETURN effects;
        EXCEPTION
            -- These are errors of one message. All other errors are errors of the environment, and
            -- a retry can succeed.
            WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
                IF NOT receiving THEN
                    RAISE;
                END IF;
                refused := refused || effect.seq;
                reasons := reasons || left(format('%s: %s', SQLSTATE, SQLERRM), 2000);
                at_most := effects;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_hand_over(text, text[], integer, integer, bigint) IS
    'Delivers the next batch of a relay into the durable inbox of this database, in one '
    'transaction: an effect with a topic in topics is received for the destination of that name, '
    'other effects are skipped, and the batch is acknowledged. An effect that cannot be received '
    'is parked with its error. Waits for other transactions as idem_receive does. max_effects and '
    'max_bytes: as for idem_relay_next. Returns the number of effects in the batch; 0 if there are '
    'no effects or another process holds the lease of the partition. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction), 55000 (transaction ids went backwards).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_relays

-- The retention of a destination and of a ring.

CREATE FUNCTION idem_configure(destination text, retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    target  idem.ring;
    longest interval;
    number  integer;
BEGIN
    IF destination IS NULL OR retention IS NULL THEN
        RAISE EXCEPTION 'destination and retention must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(destination) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the destination has % bytes', octet_length(destination)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    ELSIF retention <= '0' THEN
        RAISE EXCEPTION 'retention is %', retention
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be positive.';
    END IF;

    -- This lock conflicts with the lock of every claim, so no claim runs during the change.
    PERFORM idem.lock_out_claims();
    SELECT r.* INTO target FROM idem.ring r
     WHERE r.name <> 'outbox' AND r.retention >= idem_configure.retention
     ORDER BY r.retention, r.id LIMIT 1;
    IF NOT FOUND THEN
        SELECT max(r.retention) INTO longest FROM idem.ring r WHERE r.name <> 'outbox';
        RAISE EXCEPTION 'no ring keeps claims for %', idem_configure.retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('The longest retention of a ring is %s: change it with '
                                'idem_set_retention.', longest);
    END IF;
    number := idem.intern_destination(idem_configure.destination);
    UPDATE idem.destination AS d
       SET ring = target.id,
           retention = idem_configure.retention,
           left_short    = CASE WHEN target.id = 0 THEN NULL
                                WHEN d.ring = 0 THEN idem.ran()
                                ELSE d.left_short END,
           left_standard = CASE WHEN target.id = 1 THEN NULL
                                WHEN d.ring = 1 THEN idem.ran()
                                ELSE d.left_standard END,
           left_long     = CASE WHEN target.id = 2 THEN NULL
                                WHEN d.ring = 2 THEN idem.ran()
                                ELSE d.left_long END
     WHERE d.id = number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'destination "%" was created after the snapshot of this transaction',
            destination
            USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem_configure(text, interval) IS
    'Sets how long the claims of a destination (1 to 255 bytes) are found at least: moves it to '
    'the ring with the shortest retention that is long enough. Claims made before the move are '
    'still found. Waits at most 2 seconds for transactions with claims, and blocks new claims '
    'until the end of its transaction, so commit at once. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction), 40001 (the destination was '
    'created after the snapshot of this transaction), 55P03 (claims ran for more than 2 seconds).';

CREATE FUNCTION idem_set_retention(ring text, retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    asks record;
BEGIN
    IF ring IS NULL OR retention IS NULL THEN
        RAISE EXCEPTION 'ring and retention must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF ring NOT IN ('short', 'standard', 'long') THEN
        RAISE EXCEPTION 'there is no ring "%"', ring
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The rings are short, standard and long.';
    ELSIF retention NOT BETWEEN '100 milliseconds' AND '10 years' THEN
        RAISE EXCEPTION 'retention is %', retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 100 milliseconds and 10 years.';
    END IF;
    LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE;
    UPDATE idem.ring r
       SET retention = idem_set_retention.retention, scheduled_at = idem.ran()
     WHERE r.name = idem_set_retention.ring;
    IF (SELECT max(r.retention) FILTER (WHERE r.name = 'short')
                   > min(r.retention) FILTER (WHERE r.name = 'standard')
            OR max(r.retention) FILTER (WHERE r.name = 'standard')
                   > min(r.retention) FILTER (WHERE r.name = 'long')
          FROM idem.ring r) THEN
        RAISE EXCEPTION 'the retentions of the rings would be out of order'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The retention of short must not exceed that of standard, and that of '
                         'standard must not exceed that of long: change the rings in an order that '
                         'keeps this true.';
    END IF;
    SELECT d.name, d.retention INTO asks FROM idem.destination d JOIN idem.ring r ON r.id = d.ring
     WHERE d.retention > r.retention ORDER BY d.retention DESC LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'destination "%" needs a retention of %', asks.name, asks.retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Change its retention first with idem_configure.';
    END IF;
    -- A claim is kept for up to 1.17 retentions. Its effects must be kept longer, so the retention
    -- of the outbox depends on that of the claims.
    UPDATE idem.ring r
       SET retention = (SELECT max(i.retention) * 1.5 FROM idem.ring i WHERE i.name <> 'outbox'),
           scheduled_at = idem.ran()
     WHERE r.name = 'outbox';
END
$$;
COMMENT ON FUNCTION idem_set_retention(text, interval) IS
    'Sets how long a ring (short, standard or long) finds its claims at least: 100 milliseconds '
    'to 10 years. A shorter retention takes effect at the next rotation, also for existing '
    'claims. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby or read-only '
    'transaction).';

CREATE FUNCTION idem_remove_destination(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number integer;
    used   text;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'cannot remove a destination in a % transaction',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Remove it in a READ COMMITTED transaction: the current rows that refer '
                         'to it must be read.';
    ELSIF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'cannot execute idem_remove_destination() in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction';
    ELSIF name IS NULL THEN
        RAISE EXCEPTION 'name must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the destination has % bytes', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    END IF;
    SELECT d.id INTO number FROM idem.destination d WHERE d.name = idem_remove_destination.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Check without the lock first, so that claims do not have to wait if the destination is in
    -- use.
    used := idem.use_of_destination(number);
    IF used IS NULL THEN
        PERFORM idem.lock_out_claims();
        used := idem.use_of_destination(number);
    END IF;
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'destination "%" is in use', name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('A row of %s refers to it.', used),
                  HINT = 'Wait until its claims and effects are forgotten; process or discard its '
                         'messages.';
    END IF;
    DELETE FROM idem.retry_policy p WHERE p.destination = number;
    DELETE FROM idem.destination d WHERE d.id = number;
    PERFORM idem.invalidate('idem.destination'::regclass);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_remove_destination(text) IS
    'Removes a destination and its retry policy. No claim, external call, effect, message or dead '
    'letter may refer to it. Returns false if there is no such destination. Blocks claims while '
    'it reads all slices. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not '
    'READ COMMITTED), 25006 (standby or read-only transaction), 55000 (the destination is in '
    'use), 55P03 (claims ran for more than 2 seconds).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_retention

-- Maintenance and health.

-- This procedure has neither SECURITY DEFINER nor a SET clause, because a procedure with one of
-- them cannot commit. All names are qualified instead.
CREATE PROCEDURE idem_maintain()
LANGUAGE plpgsql
AS $$
DECLARE
    step pg_catalog.text;
    done boolean;
BEGIN
    FOREACH step IN ARRAY idem.maintenance_steps() LOOP
        FOR n IN 1 .. 64 LOOP
            -- The commit must not wait for a standby, because the step holds its locks until the
            -- commit has ended. This loses nothing: a standby that has the commit of a client also
            -- has each step that the client has seen.
            SET LOCAL synchronous_commit = local;
            done := idem.maintain_step(step, true);
            COMMIT;
            EXIT WHEN NOT done;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE idem_maintain() IS
    'Runs one maintenance pass, as the worker does, with each step in a transaction of its own. A '
    'step that fails is reported as a warning, and the other steps continue. Errors: 25000 (not '
    'READ COMMITTED), 2D000 (inside a transaction block).';

CREATE FUNCTION idem_health() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r       idem.ring;
    late    interval;
    holders text[];
    behind  text;
BEGIN
    RETURN QUERY SELECT c.* FROM idem.check_worker() c;
    RETURN QUERY SELECT c.* FROM idem.check_clock() c;
    RETURN QUERY SELECT c.* FROM idem.check_maintenance() c;
    RETURN QUERY SELECT c.* FROM idem.check_rotation() c;
    RETURN QUERY SELECT c.* FROM idem.check_filters() c;

    -- the outbox
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'outbox';
    holders := idem.relays_holding(r.slices[CASE WHEN r.emptying THEN 2 ELSE 3 END]);
    check_name := 'outbox';
    IF cardinality(holders) > 0 AND (r.emptying OR idem.is_due(r)) THEN
        status := 'critical';
        detail := format('the oldest slice cannot be truncated: relay %s has not acknowledged it. '
                         'The outbox grows until the relay runs again or is dropped with '
                         'idem_drop_relay',
                         array_to_string(holders, ', '));
    ELSIF r.emptying AND idem.ran() - r.rotated_at > '5 minutes' THEN
        status := 'warning';
        detail := format('the TRUNCATE of the oldest slice has waited for %s: see '
                         'idem_rotation_blockers()',
                         date_trunc('second', idem.ran() - r.rotated_at));
    ELSE
        status := 'ok';
        detail := format('size %s',
                         pg_size_pretty((
                             SELECT sum(pg_total_relation_size(idem.slice_table('outbox', s)))
                               FROM unnest(r.slices) s)));
    END IF;
    RETURN NEXT;

    RETURN QUERY SELECT c.* FROM idem.check_relays() c;
    RETURN QUERY SELECT c.* FROM idem.check_due_times() c;

    -- the durable inbox
    check_name := 'durable inbox';
    SELECT d.name, clock_timestamp() - w.due_at INTO behind, late
      FROM idem.destination d
     CROSS JOIN LATERAL (SELECT x.due_at FROM idem.pending x
                          WHERE x.destination = d.id AND x.payload_slice IS NOT NULL
                          ORDER BY x.due_at LIMIT 1) w
     ORDER BY w.due_at LIMIT 1;
    status := CASE WHEN late > '1 hour' THEN 'critical'
                   WHEN late > '1 minute' THEN 'warning'
                   ELSE 'ok' END;
    detail := CASE WHEN status = 'ok' THEN 'no message is late'
                   ELSE format('destination %s: the first due message has waited for %s: check '
                               'that its consumers run',
                               behind, date_trunc('second', late)) END;
    RETURN NEXT;

    -- dead letters
    check_name := 'dead letters';
    SELECT format('%s, of destination %s: see idem.dead_letters, then use idem_requeue or '
                  'idem_discard',
                  sum(l.n), string_agg(d.name, ', ' ORDER BY d.name)),
           string_agg(d.name, ', ' ORDER BY d.name)
               FILTER (WHERE l.n >= 0.8 * current_setting('idem.max_dead_letters')::integer)
      INTO detail, behind
      FROM (SELECT x.destination, count(*) AS n FROM idem.dead_letter x GROUP BY x.destination) l
      JOIN idem.destination d ON d.id = l.destination
    HAVING count(*) > 0;
    status := CASE WHEN detail IS NULL THEN 'ok'
                   WHEN behind IS NULL THEN 'warning'
                   ELSE 'critical' END;
    detail := coalesce(detail, 'none')
           || coalesce(format('. Destination %s is near idem.max_dead_letters: above this limit '
                              'rejected messages stay at their brokers, and consumers pause',
                              behind), '');
    RETURN NEXT;

    -- destinations
    check_name := 'destinations';
    detail := format('%s names', idem.destination_count());
    status := CASE WHEN idem.destination_count() > 100000 THEN 'warning' ELSE 'ok' END;
    IF status <> 'ok' THEN
        detail := detail || ': a destination names a consumer, not a message. Remove unused names '
                            'with idem_remove_destination';
    END IF;
    RETURN NEXT;

    -- transaction ids
    check_name := 'transaction ids';
    BEGIN
        PERFORM idem.check_xids(p)
           FROM idem.relay_partition rp
           JOIN idem.relay x ON x.id = rp.relay AND x.dropped_at IS NULL
          CROSS JOIN LATERAL idem.progress_of(x, rp.partition) p;
        status := 'ok';
        detail := 'in order';
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        status := 'critical';
        detail := 'they went backwards (a restore into a younger cluster): stop producers and '
                  'relays, then run SELECT @extschema@.idem_repair_relays()';
    END;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION idem_health() IS
    'Returns one row for each check: status is ok, warning or critical, and detail is the problem '
    'and what to do. Works on a standby.';

CREATE FUNCTION idem_rotation_blockers() RETURNS TABLE (
    ring             text,
    pid              integer,
    usename          name,
    application_name text,
    state            text,
    xact_start       timestamptz,
    gid              text,
    blocks           text
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT b.* FROM idem.rotation_blockers() b;
$$;
COMMENT ON FUNCTION idem_rotation_blockers() IS
    'Returns what the rotations wait for, with the oldest transaction of each ring first: '
    'sessions, prepared transactions (with gid; xact_start is the time at which they were '
    'prepared) and relays. blocks: the step of the rotation that waits. A transaction that began '
    'after this step is shown when it is older than one second: a maintenance process waits for '
    'it if it first checked the step later.';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- requires:
--   api_maintenance

-- Granting and revoking the kinds of roles.

CREATE FUNCTION idem_grant(role regrole, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    given record;
BEGIN
    PERFORM idem.check_grant(role, kind);
    FOR given IN SELECT p.privilege, p.object FROM idem.privileges_of_kind(kind) p
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', given.privilege, given.object, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_grant(regrole, text) IS
    'Grants a role the privileges of a kind: consumer, receiver, relay, operator, monitor or '
    'admin. These are EXECUTE on its functions and SELECT on its views; no kind has privileges on '
    'tables. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby or read-only '
    'transaction), 42704 (no such role).';

CREATE FUNCTION idem_revoke(role regrole, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken record;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'cannot revoke a kind in a % transaction',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Revoke it in a READ COMMITTED transaction: the current kinds of the role '
                         'must be read.';
    END IF;
    PERFORM idem.check_grant(role, kind);
    -- If the role was not granted this kind, nothing is revoked: the role has its privileges from
    -- other kinds or from GRANT.
    IF NOT EXISTS (SELECT 1 FROM idem.kinds_of_role(role) held (kind)
                    WHERE held.kind = idem_revoke.kind) THEN
        RETURN;
    END IF;
    FOR taken IN
        SELECT p.privilege, p.object FROM idem.privileges_of_kind(idem_revoke.kind) p
        EXCEPT
        SELECT p.privilege, p.object
          FROM idem.kinds_of_role(role) other (kind), idem.privileges_of_kind(other.kind) p
         WHERE other.kind <> idem_revoke.kind
    LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s', taken.privilege, taken.object, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_revoke(regrole, text) IS
    'Revokes what idem_grant granted for a kind, except the privileges that another kind of the '
    'role needs. Does nothing if the role was not granted the kind. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 2BP01 (dependent privileges exist), 42704 (no such role).';
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::build_filters
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::check_version_for_sql
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::claim_state
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::counters
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::default_max_attempts
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::enter_pending
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::fence
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::filter_states
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::find_destination
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/leases.rs
-- idem::sql_api::leases::idem_acquire_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/leases.rs
-- idem::sql_api::leases::idem_acquire_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/commit.rs
-- idem::sql_api::commit::idem_allow_commit
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_begin_call_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_begin_call_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_calls_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_calls_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_claim_in_block_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_claim_in_block_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_claim_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_claim_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/leases.rs
-- idem::sql_api::leases::idem_complete
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/leases.rs
-- idem::sql_api::leases::idem_complete_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_effects_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_effects_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_fail_call_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_fail_call_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_finish_call_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/journal.rs
-- idem::sql_api::journal::idem_finish_call_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/commit.rs
-- idem::sql_api::commit::idem_forbid_commit
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_forget
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_forget_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_is_claimed
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_is_claimed_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/inbox.rs
-- idem::sql_api::inbox::idem_next
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/inbox.rs
-- idem::sql_api::inbox::idem_next_wait
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/inbox.rs
-- idem::sql_api::inbox::idem_receive_bytes_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/inbox.rs
-- idem::sql_api::inbox::idem_receive_bytes_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/inbox.rs
-- idem::sql_api::inbox::idem_receive_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/inbox.rs
-- idem::sql_api::inbox::idem_receive_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_record_effects
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_record_effects_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/relays.rs
-- idem::sql_api::relays::idem_relay_wait
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_replay_effects
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_replay_effects_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_send
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_send_bytes
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_try_claim_batch
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_try_claim_text
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_try_claim_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/claim.rs
-- idem::sql_api::claim::idem_try_claim_uuid_batch
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_try_record
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/effects.rs
-- idem::sql_api::effects::idem_try_record_uuid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::intern_destination
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::invalidate
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::invalidate_filter
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::is_last_failure_sql
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::key_of
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::monotonic
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::next_xid
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::note_expired_lease
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::note_failure_sql
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::note_pending
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::pending_presence
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::ran
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::record_letter
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::set_pending_presence
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/internal.rs
-- idem::sql_api::internal::wake_consumers
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_api/maintenance.rs
-- idem::sql_api::maintenance::worker_state
-- Skipped due to `#[pgrx(sql = false)]`
/* </end connected objects> */

/* <begin connected objects> */
-- extension/src/sql_files.rs
-- finalize
-- The privileges after CREATE EXTENSION.

-- Until idem_grant is called, only the owner has privileges. By default PostgreSQL grants EXECUTE
-- on functions to PUBLIC, and ALTER DEFAULT PRIVILEGES may grant more, also CREATE on the schema.
-- Both are revoked here. PUBLIC keeps USAGE on the row types of tables, which allows nothing
-- without a privilege on the table.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT DISTINCT m.what, m.name, a.grantee
          FROM (SELECT f.oid, 'pg_catalog.pg_proc'::pg_catalog.regclass AS class,
                       CASE f.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END AS what,
                       f.oid::pg_catalog.regprocedure::text AS name, f.proowner AS owner,
                       coalesce(f.proacl, pg_catalog.acldefault('f', f.proowner)) AS acl
                  FROM pg_catalog.pg_proc f
                UNION ALL
                SELECT c.oid, 'pg_catalog.pg_class'::pg_catalog.regclass,
                       CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
                       c.oid::pg_catalog.regclass::text, c.relowner, c.relacl
                  FROM pg_catalog.pg_class c
                 WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,S}'::"char"[])
                UNION ALL
                SELECT n.oid, 'pg_catalog.pg_namespace'::pg_catalog.regclass, 'SCHEMA',
                       n.oid::pg_catalog.regnamespace::text, n.nspowner, n.nspacl
                  FROM pg_catalog.pg_namespace n
                UNION ALL
                SELECT t.oid, 'pg_catalog.pg_type'::pg_catalog.regclass, 'TYPE',
                       t.oid::pg_catalog.regtype::text, t.typowner,
                       coalesce(t.typacl, pg_catalog.acldefault('T', t.typowner))
                  FROM pg_catalog.pg_type t
                  LEFT JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) t.typrelid
                 WHERE t.typtype OPERATOR(pg_catalog.=) 'e'::"char"
                    OR r.relkind OPERATOR(pg_catalog.=) 'c'::"char") m
          JOIN pg_catalog.pg_depend e ON e.classid OPERATOR(pg_catalog.=) m.class
                                     AND e.objid OPERATOR(pg_catalog.=) m.oid
                                     AND e.deptype OPERATOR(pg_catalog.=) 'e'
          JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) e.refobjid
                                        AND x.extname OPERATOR(pg_catalog.=) 'idem'
         CROSS JOIN LATERAL pg_catalog.aclexplode(m.acl) a
         WHERE a.grantee OPERATOR(pg_catalog.<>) m.owner
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s', given.what, given.name,
                                  CASE WHEN given.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
                                       ELSE given.grantee::pg_catalog.regrole::text END);
    END LOOP;
END
$$;
GRANT USAGE ON TYPE idem_outcome, idem_effect, idem_lease_outcome, idem_call_state TO PUBLIC;

-- The CHECK constraints of the pending messages call this function as the role that writes. Its
-- only effect is that claims look for pending messages.
GRANT EXECUTE ON FUNCTION idem.note_pending(bigint) TO PUBLIC;
/* </end connected objects> */

