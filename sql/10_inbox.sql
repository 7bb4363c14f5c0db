-- The inbox: who was handled. Claims live in rings of slices; a slice is emptied by TRUNCATE and never by DELETE.

-- The numbers of destinations come from no sequence, because a transaction that is rolled back would use one up: see
-- extension/src/destination.rs.
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
COMMENT ON TABLE  idem.destination IS 'The consuming endpoints by name. A first claim creates one; idem_configure changes it.';
COMMENT ON COLUMN idem.destination.ring IS 'The ring (idem.ring.id) that takes its claims.';
COMMENT ON COLUMN idem.destination.left_short IS 'When (a reading of idem.clock.ran) it moved from the ring short to another: claims look there too until that ring has forgotten that moment.';
COMMENT ON COLUMN idem.destination.left_standard IS 'The same for the ring standard.';
COMMENT ON COLUMN idem.destination.left_long IS 'The same for the ring long.';
COMMENT ON COLUMN idem.destination.retention IS 'What idem_configure asked for; null: whatever its ring keeps.';

CREATE TABLE idem.ring (
    id              int2        NOT NULL,
    current         int2        NOT NULL DEFAULT 0,
    opening         boolean     NOT NULL DEFAULT false,
    emptying        boolean     NOT NULL DEFAULT false,
    remembers_since interval,
    turned_at       interval    NOT NULL DEFAULT '0',
    turns           bigint      NOT NULL DEFAULT 0,
    opened          interval[]  NOT NULL DEFAULT '{0,0,0,0}',
    started         interval[]  NOT NULL DEFAULT '{0,0,0,0}',
    scheduled_at    interval,
    retention       interval    NOT NULL,
    name            text        NOT NULL,
    CONSTRAINT ring_pkey PRIMARY KEY (id),
    CONSTRAINT ring_current_is_a_slice CHECK (current BETWEEN 0 AND 3),
    CONSTRAINT ring_has_one_phase CHECK (NOT (opening AND emptying)),
    CONSTRAINT ring_retention_is_positive CHECK (retention > '0')
);
COMMENT ON TABLE  idem.ring IS 'The state of each ring. Its slices in the order of their age: current + 2, current + 3 (sealed), current, current + 1 (next), modulo 4. Every claim locks this table ROW EXCLUSIVE until its transaction ends: that lock is what a rotation fences on.';
COMMENT ON COLUMN idem.ring.opening IS 'The rotation has begun: claims go into current and next.';
COMMENT ON COLUMN idem.ring.emptying IS 'The ring has turned: next still holds what fell off, until nobody can probe it and it is truncated.';
COMMENT ON COLUMN idem.ring.remembers_since IS 'Every claim made since then is found; null: every claim. As all moments of this table a reading of idem.clock.ran.';
COMMENT ON COLUMN idem.ring.turned_at IS 'When it turned last.';
COMMENT ON COLUMN idem.ring.scheduled_at IS 'When its retention was changed last: under the new one no rotation was due before.';
COMMENT ON COLUMN idem.ring.opened IS 'When claims began to go into each slice, by slice number + 1: the fence between this and started can be long.';
COMMENT ON COLUMN idem.ring.started IS 'When each slice became current last, by slice number + 1.';

-- CREATE EXTENSION inserts the first state and a restore brings the dumped one: the later row replaces the earlier.
CREATE FUNCTION idem.replace_row_by_id() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE pg_catalog.format('DELETE FROM %I.%I WHERE id = $1', TG_TABLE_SCHEMA, TG_TABLE_NAME) USING NEW.id;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.replace_row_by_id() IS 'Lets pg_restore replace the rows that CREATE EXTENSION inserted.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.ring FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.ring ENABLE ALWAYS TRIGGER replace_row;

INSERT INTO idem.ring (id, name, retention) VALUES
    (0, 'short',    '1 hour'),
    (1, 'standard', '7 days'),
    (2, 'long',     '30 days'),
    (3, 'outbox',   '45 days');

-- 56 bytes a claim: the widest alignments first. A text id stays readable beside its key; the two together tell a
-- duplicate from another text with the same key. Sealed slices are truncated long before freezing them would pay.
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
                    claimed_at  timestamptz NOT NULL,
                    destination int4        NOT NULL,
                    id          text,
                    fingerprint bytea,
                    CONSTRAINT %2$I PRIMARY KEY (key, destination)
                ) WITH (autovacuum_vacuum_insert_threshold = -1);
                COMMENT ON TABLE idem.%1$I IS 'A slice of the inbox: claims. Written and read by idem_try_claim and its kin only.';
                $ddl$, 'inbox_' || ring || '_' || slice, 'inbox_' || ring || '_' || slice || '_pkey');
            PERFORM pg_catalog.pg_extension_config_dump(('idem.inbox_' || ring || '_' || slice)::pg_catalog.regclass, '');
        END LOOP;
    END LOOP;
END
$$;

SELECT pg_catalog.pg_extension_config_dump('idem.destination', '');
SELECT pg_catalog.pg_extension_config_dump('idem.ring', '');
