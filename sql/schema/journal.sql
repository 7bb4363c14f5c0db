-- The journal: external calls, that is requests to something outside the database, which have
-- begun, finished or failed. The journal is insert-only and stored in the rings of the claims: an
-- entry is forgotten with the claim that it belongs to.

DO $$
DECLARE
    ring  text;
    slice integer;
BEGIN
    FOREACH ring IN ARRAY ARRAY['short', 'standard', 'long'] LOOP
        FOR slice IN 0 .. 3 LOOP
            EXECUTE pg_catalog.format($ddl$
                CREATE TABLE idem.%1$I (
                    key         uuid        NOT NULL,
                    at          timestamptz NOT NULL,
                    destination int4        NOT NULL,
                    event       int4        NOT NULL,
                    kind        int2        NOT NULL,
                    step        text COLLATE pg_catalog."C" NOT NULL,
                    digest      bytea,
                    body        jsonb,
                    CONSTRAINT %2$I PRIMARY KEY (key, destination, step, event)
                ) WITH (autovacuum_vacuum_insert_threshold = -1);
                COMMENT ON TABLE  idem.%1$I IS
                    'A slice of the journal: external calls. Written and read by idem_begin_call '
                    'and related functions only.';
                COMMENT ON COLUMN idem.%1$I.event IS
                    'The number of this event of the external call, from 0. Of two sessions that '
                    'record the same event at the same time, the primary key lets one write first.';
                COMMENT ON COLUMN idem.%1$I.kind IS
                    '0: begun. 1: finished. 2: failed, and may be retried. 3: failed for good.';
                COMMENT ON COLUMN idem.%1$I.digest IS
                    'SHA-256 of the request of the first attempt. Each event has it, because the '
                    'event that began the call may be forgotten first.';
                COMMENT ON COLUMN idem.%1$I.body IS 'The response, or the error as a JSON string.';
                $ddl$, 'call_' || ring || '_' || slice, 'call_' || ring || '_' || slice || '_pkey');
            PERFORM pg_catalog.pg_extension_config_dump(
                ('idem.call_' || ring || '_' || slice)::pg_catalog.regclass, '');
        END LOOP;
    END LOOP;
END
$$;
