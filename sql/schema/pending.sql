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
    id           int2   NOT NULL,
    current      int2   NOT NULL,
    bytes        bigint NOT NULL DEFAULT 0,
    installation uuid   NOT NULL,
    CONSTRAINT pending_rotation_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE  idem.pending_rotation IS
    'Which table of pending messages is the current one. A writer locks that table ROW EXCLUSIVE '
    'and then checks that it is still the current one.';
COMMENT ON COLUMN idem.pending_rotation.bytes IS
    'The size of the current table after the last rotation, in bytes.';
INSERT INTO idem.pending_rotation (id, current, installation)
SELECT 1, 0, i.installation FROM idem.installation i;

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
    installation      uuid          NOT NULL,
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
INSERT INTO idem.payload_rotation (id, current, installation)
SELECT 1, 0, i.installation FROM idem.installation i;

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

CREATE VIEW idem.payload_row AS
    SELECT 0::int2 AS slice, b.* FROM idem.payload_0 b
    UNION ALL
    SELECT 1::int2, b.* FROM idem.payload_1 b
    UNION ALL
    SELECT 2::int2, b.* FROM idem.payload_2 b
    UNION ALL
    SELECT 3::int2, b.* FROM idem.payload_3 b;
COMMENT ON VIEW idem.payload_row IS 'All slices of payloads as one relation.';

-- Only a change of the current slice is published. Backends do not use the other columns, which are
-- for maintenance.
CREATE TRIGGER publish AFTER INSERT OR UPDATE OF current OR DELETE OR TRUNCATE
    ON idem.payload_rotation FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
ALTER TABLE idem.payload_rotation ENABLE ALWAYS TRIGGER publish;
