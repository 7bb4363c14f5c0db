-- Relays: the readers of the outbox that publish the effects, and their progress.
--
-- Progress is appended, never updated. The newest row of a (relay, partition) is its state, and its
-- pos is the fencing token of the batch that it leases. If one row were updated ten times a second,
-- readers would have to pass all its versions that the oldest snapshot keeps. With appended rows
-- the newest row is always the first that the index returns. Two tables are used in rotation.
--
-- CREATE EXTENSION creates the relay with id 1. Its row is kept when it is dropped, because a
-- restore would bring it back otherwise. The rows of other relays are deleted, and their ids are
-- not used again.

CREATE SEQUENCE idem.relay_id_seq AS int4 START 2;
CREATE SEQUENCE idem.progress_pos_seq;

CREATE TABLE idem.relay (
    id              int4        NOT NULL,
    partitions      int4        NOT NULL DEFAULT 1,
    start_snapshot  pg_snapshot NOT NULL,
    start_floor     bigint      NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT pg_catalog.now(),
    dropped_at      timestamptz,
    restored_at     timestamptz,
    restored_at_xid xid8,
    name            text        NOT NULL,
    CONSTRAINT relay_pkey PRIMARY KEY (id),
    CONSTRAINT relay_has_partitions CHECK (partitions BETWEEN 1 AND 256),
    CONSTRAINT relay_floor_is_noted CHECK (idem.note_floor(start_floor, NULL, NULL))
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
                waits_for     text,
                CONSTRAINT progress_%1$s_pkey PRIMARY KEY (relay, partition, pos),
                CONSTRAINT progress_%1$s_floors_are_noted
                    CHECK (idem.note_floor(floor_from, floor_to, ceiling_to))
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
            COMMENT ON COLUMN idem.progress_%1$s.waits_for IS
                'What the leased batch waits for, as its process has reported: see '
                'idem_relay_extend.';
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
