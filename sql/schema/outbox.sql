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
            CREATE INDEX outbox_%1$s_source ON idem.outbox_%1$s (recorded_at, source_key)
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
