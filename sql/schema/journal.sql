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
                    body        text,
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
                    'The response as JSON, byte for byte, or the error.';
                $ddl$, ring, slice);
            PERFORM pg_catalog.pg_extension_config_dump(
                pg_catalog.format('idem.call_%s_%s', ring, slice)::pg_catalog.regclass, '');
        END LOOP;
    END LOOP;
END
$$;
