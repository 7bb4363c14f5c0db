-- Work that is not done: what is leased, what was received and waits, what failed and comes again, what has died.
--
-- One narrow row an identity, in one of two tables used in turn: the row is updated, and deleted with the claim that ends it,
-- so the table holds dead rows, and under an old snapshot no VACUUM can take them away. idem.turn_work copies what is alive into the other
-- table and goes on there. Only the current one counts. What a message carries is in idem.body_N, insert-only.

CREATE SEQUENCE idem.work_seq;
CREATE SEQUENCE idem.work_token_seq;

CREATE TYPE idem_lease_outcome AS ENUM ('acquired', 'duplicate', 'in_progress', 'exhausted', 'dead');
COMMENT ON TYPE idem_lease_outcome IS 'What became of a lease. acquired: do the work. duplicate: it was done. in_progress: somebody is at it, or it rests after a failure. exhausted: leased, but its attempts are used up: bury it. dead: it is among the dead letters.';

DO $$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 1 LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TABLE idem.work_%1$s (
                seq         bigint      NOT NULL,
                token       bigint      NOT NULL DEFAULT 0,
                due_at      timestamptz NOT NULL,
                received_at timestamptz NOT NULL,
                key         uuid        NOT NULL,
                destination int4        NOT NULL,
                attempt     int4        NOT NULL DEFAULT 0,
                body        int2,
                leased      boolean     NOT NULL DEFAULT false,
                id          text,
                order_key   text COLLATE pg_catalog."C",
                errors      jsonb       NOT NULL DEFAULT '[]',
                CONSTRAINT work_%1$s_pkey PRIMARY KEY (key, destination)
            );
            CREATE INDEX work_%1$s_due ON idem.work_%1$s (destination, due_at, seq);
            CREATE INDEX work_%1$s_order ON idem.work_%1$s (destination, order_key, leased, seq);
            COMMENT ON TABLE  idem.work_%1$s IS 'Identities that are not done; the table counts while it is the current one of idem.work_turn.';
            COMMENT ON COLUMN idem.work_%1$s.seq IS 'The order in which they came; also the place of the body.';
            COMMENT ON COLUMN idem.work_%1$s.token IS 'Fences the lease: whoever shows another has lost it. 0: never leased.';
            COMMENT ON COLUMN idem.work_%1$s.due_at IS 'Until then nobody is given it: the end of the lease, of the rest after a failure, or deliver_after. infinity: it is dead.';
            COMMENT ON COLUMN idem.work_%1$s.attempt IS 'How often it was begun, counted before the work: who dies of it is counted too.';
            COMMENT ON COLUMN idem.work_%1$s.body IS 'The slice of idem.body_N that holds what it carries; null: the message lives at its broker.';
            COMMENT ON COLUMN idem.work_%1$s.leased IS 'Somebody is at it until due_at.';
            COMMENT ON COLUMN idem.work_%1$s.errors IS 'The last errors, oldest first: [{"at": ..., "attempt": ..., "error": ...}].';
            $ddl$, slice);
        PERFORM pg_catalog.pg_extension_config_dump(('idem.work_' || slice)::pg_catalog.regclass, '');
    END LOOP;
END
$$;

CREATE TABLE idem.work_turn (
    id      int2   NOT NULL,
    current int2   NOT NULL,
    bytes   bigint NOT NULL DEFAULT 0,
    CONSTRAINT work_turn_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE  idem.work_turn IS 'Which table of work counts. Whoever writes work locks both tables ROW EXCLUSIVE first, and reads this with the latest snapshot then.';
COMMENT ON COLUMN idem.work_turn.bytes IS 'How large the current table was after the last turn.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.work_turn FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.work_turn ENABLE ALWAYS TRIGGER replace_row;
INSERT INTO idem.work_turn (id, current) VALUES (1, 0);

DO $$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 3 LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TABLE idem.body_%1$s (
                seq          bigint NOT NULL,
                payload      bytea  NOT NULL,
                content_type text   NOT NULL,
                type         text,
                headers      jsonb,
                traceparent  text,
                CONSTRAINT body_%1$s_pkey PRIMARY KEY (seq)
            ) WITH (autovacuum_vacuum_insert_threshold = -1);
            COMMENT ON TABLE idem.body_%1$s IS 'What received messages carry; insert-only, emptied by TRUNCATE when no work refers to it.';
            $ddl$, slice);
        PERFORM pg_catalog.pg_extension_config_dump(('idem.body_' || slice)::pg_catalog.regclass, '');
    END LOOP;
END
$$;

CREATE TABLE idem.body_turn (
    id      int2 NOT NULL,
    current int2 NOT NULL,
    unused_since timestamptz[] NOT NULL DEFAULT '{infinity,infinity,infinity,infinity}',
    CONSTRAINT body_turn_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE idem.body_turn IS 'Which slice takes the next bodies. Readers go by the slice that the work names.';
COMMENT ON COLUMN idem.body_turn.unused_since IS 'Since when no work refers to each slice, by slice number + 1, as far as the maintainer has seen; infinity: some does.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.body_turn FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.body_turn ENABLE ALWAYS TRIGGER replace_row;
INSERT INTO idem.body_turn (id, current) VALUES (1, 0);

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
COMMENT ON TABLE idem.dead_letter IS 'Messages whose attempts are used up, with every error: see the view idem.dead_letters, idem_requeue and idem_discard.';

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
COMMENT ON TABLE  idem.retry_policy IS 'How often and when a failed message is tried again: see idem_configure_retries.';
COMMENT ON COLUMN idem.retry_policy.jitter IS 'The share of each pause that is random.';
COMMENT ON COLUMN idem.retry_policy.final_errors IS 'Patterns of LIKE: an error that one of them matches is not tried again.';

SELECT pg_catalog.pg_extension_config_dump('idem.work_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.work_token_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.work_turn', '');
SELECT pg_catalog.pg_extension_config_dump('idem.body_turn', '');
SELECT pg_catalog.pg_extension_config_dump('idem.dead_letter', '');
SELECT pg_catalog.pg_extension_config_dump('idem.retry_policy', '');
