-- Relays: who publishes the effects, and how far each has come.
--
-- Progress is appended, never updated: the newest row of a (relay, partition) is its state, and its pos is the fencing
-- token of the batch that it leases. A row updated ten times a second would become a version chain as long as the oldest
-- snapshot is old; here the newest row is always the first that the index gives. Two tables are used in turn.

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
COMMENT ON TABLE  idem.relay IS 'The relays. Each sees every effect; each holds the outbox until it has acknowledged.';
COMMENT ON COLUMN idem.relay.start_snapshot IS 'It sees what is not visible in this snapshot.';
COMMENT ON COLUMN idem.relay.start_floor IS 'Transactions that began after start_snapshot have higher sequence numbers than this.';
COMMENT ON COLUMN idem.relay.dropped_at IS 'Of the relay with id 1 only, which CREATE EXTENSION makes: its row stays, so that a restore does not bring it back.';
COMMENT ON COLUMN idem.relay.restored_at IS 'When a dump brought it here. Progress that is older was made by another database.';
COMMENT ON COLUMN idem.relay.restored_at_xid IS 'The transaction ids from here on are this cluster''s: progress that knows them already was made by another.';
CREATE FUNCTION idem.note_restore() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- What is made here is of now; what a dump brings is not.
    IF NEW.created_at <> now() THEN
        NEW.restored_at := clock_timestamp();
        NEW.restored_at_xid := idem.next_xid();
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.note_restore() IS 'Notes where the transaction ids of this cluster stood when a relay was restored.';
CREATE TRIGGER note_restore BEFORE INSERT ON idem.relay FOR EACH ROW EXECUTE FUNCTION idem.note_restore();
ALTER TABLE idem.relay ENABLE ALWAYS TRIGGER note_restore;
CREATE TRIGGER replace_row BEFORE INSERT ON idem.relay FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.relay ENABLE ALWAYS TRIGGER replace_row;

CREATE TABLE idem.relay_partition (
    relay     int4 NOT NULL,
    partition int4 NOT NULL,
    CONSTRAINT relay_partition_pkey PRIMARY KEY (relay, partition)
);
COMMENT ON TABLE idem.relay_partition IS 'One row a partition, never updated: locking it is what makes the steps of one partition follow each other.';
CREATE FUNCTION idem.keep_first_partition() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM idem.relay_partition p WHERE p.relay = NEW.relay AND p.partition = NEW.partition;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.keep_first_partition() IS 'Lets pg_restore replace the rows that CREATE EXTENSION inserted.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.relay_partition FOR EACH ROW EXECUTE FUNCTION idem.keep_first_partition();
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
                pos           bigint      NOT NULL DEFAULT pg_catalog.nextval('idem.progress_pos_seq'),
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
            COMMENT ON TABLE idem.progress_%1$s IS 'How far each relay has come; the highest pos of a partition counts.';
            COMMENT ON COLUMN idem.progress_%1$s.leased_until IS 'Not null: a batch is out, and pos is its token.';
            COMMENT ON COLUMN idem.progress_%1$s.seq_after IS 'How far inside the pair of snapshots everything is acknowledged.';
            COMMENT ON COLUMN idem.progress_%1$s.seq_through IS 'The last effect of the batch that is out.';
            COMMENT ON COLUMN idem.progress_%1$s.exhausted IS 'The batch that is out is the last between these two snapshots.';
            COMMENT ON COLUMN idem.progress_%1$s.deferring IS 'The batch that is out holds effects whose time has not come: they are put aside with its acknowledgement.';
            COMMENT ON COLUMN idem.progress_%1$s.from_delayed IS 'The batch that is out came from idem.delayed; the cursor does not move with it.';
            COMMENT ON COLUMN idem.progress_%1$s.floor_from IS 'Transactions that began after snapshot_from have higher sequence numbers than this.';
            COMMENT ON COLUMN idem.progress_%1$s.ceiling_to IS 'No transaction that snapshot_to sees has a higher sequence number than this.';
            $ddl$, slice);
        PERFORM pg_catalog.pg_extension_config_dump(('idem.progress_' || slice)::pg_catalog.regclass, '');
    END LOOP;
END
$$;

-- Which of the two takes the next row. Readers look in both, so a restore need not know it.
CREATE TABLE idem.progress_turn (
    id      int2 NOT NULL DEFAULT 1,
    current int2 NOT NULL,
    CONSTRAINT progress_turn_pkey PRIMARY KEY (id),
    CONSTRAINT progress_turn_is_one_row CHECK (id = 1)
);
COMMENT ON TABLE idem.progress_turn IS 'Which table of progress is appended to: see idem.turn_progress.';
INSERT INTO idem.progress_turn (current) VALUES (0);

CREATE VIEW idem.progress AS
    SELECT * FROM idem.progress_0
    UNION ALL
    SELECT * FROM idem.progress_1;
COMMENT ON VIEW idem.progress IS 'The two tables of progress as one relation.';

CREATE FUNCTION idem.effect_bytes(payload bytea, headers jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN pg_catalog.octet_length(payload) OPERATOR(pg_catalog.+) COALESCE(pg_catalog.octet_length(headers::text), 0);
COMMENT ON FUNCTION idem.effect_bytes(bytea, jsonb) IS 'What an effect counts towards max_bytes of a batch: payload and headers. The other columns have small limits.';

-- Effects that a relay has put aside, with all they need: the outbox may forget them. A key holds no
-- generated column: under a publication for all tables PostgreSQL 18 refuses to update or delete such rows.
CREATE TABLE idem.delayed (
    relay     int4        NOT NULL,
    partition int4        NOT NULL,
    due_at    timestamptz NOT NULL,
    token     bigint,
    effect    idem.outbox_row NOT NULL,
    seq       bigint      NOT NULL,
    bytes     integer     NOT NULL GENERATED ALWAYS AS (idem.effect_bytes((effect).payload, (effect).headers)) STORED,
    CONSTRAINT delayed_pkey PRIMARY KEY (relay, partition, due_at, seq),
    CONSTRAINT delayed_seq_is_of_effect CHECK (seq IS NOT DISTINCT FROM (effect).seq)
);
COMMENT ON TABLE  idem.delayed IS 'Effects that wait for their deliver_after, or that come once more, per relay.';
COMMENT ON COLUMN idem.delayed.token IS 'The batch that carries it at the moment.';

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
COMMENT ON TABLE idem.parked_effect IS 'Effects that a relay has set aside with the reason: see idem_relay_park, and idem.parked without what they carry.';

SELECT pg_catalog.pg_extension_config_dump('idem.relay_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.progress_pos_seq', '');
-- In this order the first relay, which CREATE EXTENSION has inserted, is replaced before another of its name comes.
SELECT pg_catalog.pg_extension_config_dump('idem.relay', 'ORDER BY id');
SELECT pg_catalog.pg_extension_config_dump('idem.relay_partition', '');
SELECT pg_catalog.pg_extension_config_dump('idem.delayed', '');
SELECT pg_catalog.pg_extension_config_dump('idem.parked_effect', '');
