-- The claims: one row for each processed message. They are stored in rings of slices. A slice is
-- emptied by TRUNCATE, never by DELETE. extension/src/claim_row.rs has the columns of a claim.

-- The ids of destinations are not taken from a sequence, because a transaction that is retried
-- would use up a number each time: see extension/src/destination.rs.
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
    phase           text COLLATE pg_catalog."C" NOT NULL DEFAULT 'steady',
    segment         int2        NOT NULL DEFAULT 0,
    remembers_since interval,
    rotated_at      interval    NOT NULL DEFAULT '0',
    rotations       bigint      NOT NULL DEFAULT 0,
    opened          interval[]  NOT NULL,
    started         interval[]  NOT NULL,
    segment_opened  interval    NOT NULL DEFAULT '0',
    segment_started interval    NOT NULL DEFAULT '0',
    segment_bytes   bigint      NOT NULL DEFAULT 0,
    scheduled_at    interval,
    retention       interval    NOT NULL,
    name            text        NOT NULL,
    installation    uuid        NOT NULL,
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
    CONSTRAINT ring_phase_is_known
        CHECK (phase IN ('steady', 'advancing', 'opening', 'emptying')),
    CONSTRAINT ring_segment_is_known CHECK (segment >= 0 AND segment <= 63),
    CONSTRAINT ring_advances_to_a_segment
        CHECK (phase <> 'advancing' OR (segment < 63 AND name <> 'outbox')),
    CONSTRAINT ring_retention_is_positive CHECK (retention > '0')
);
COMMENT ON TABLE  idem.ring IS
    'The state of each ring. Every claim locks this table ROW EXCLUSIVE until its transaction '
    'ends, and the fence of a rotation waits for these locks.';
COMMENT ON COLUMN idem.ring.slices IS
    'The numbers of the slices: current, next, and the sealed slices, the oldest first. A rotation '
    'moves the first number to the end.';
COMMENT ON COLUMN idem.ring.phase IS
    'steady: claims are written to the present segment of the current slice. advancing: and to '
    'the next segment. opening: and to segment 0 of the next slice. emptying: as steady, after the '
    'slices have rotated: next still holds the oldest claims. It is truncated when no transaction '
    'can read it any more.';
COMMENT ON COLUMN idem.ring.segment IS
    'The present segment of the current slice. Look-ups do not use it: a slice can have rows in '
    'each segment.';
COMMENT ON COLUMN idem.ring.segment_opened IS
    'The time since which claims are written to the newest segment.';
COMMENT ON COLUMN idem.ring.segment_started IS
    'The time since which claims are written to the present segment only. The fence is between '
    'the two.';
COMMENT ON COLUMN idem.ring.segment_bytes IS
    'The size of the current slice when its newest segment opened.';
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

INSERT INTO idem.ring (id, name, retention, slices, opened, started, installation)
SELECT r.id, r.name, r.retention::interval, idem.slice_numbers(r.id), t.zeros, t.zeros,
       i.installation
  FROM idem.installation i,
       (VALUES (0::int2, 'short',    '1 hour'),
               (1::int2, 'standard', '7 days'),
               (2::int2, 'long',     '30 days'),
               (3::int2, 'outbox',   '45 days')) AS r (id, name, retention),
       LATERAL pg_catalog.array_fill(
           '0'::interval, ARRAY[pg_catalog.cardinality(idem.slice_numbers(r.id))]) AS t (zeros);

-- A claim takes 56 bytes, because the columns with the widest alignment come first. A text id is
-- stored beside its key, so that a duplicate is distinguished from another text with the same key.
-- Claims are inserted into the newest segment of a slice, so that they change few pages of the
-- index. VACUUM after inserts is off, because a slice is truncated before it is worthwhile to
-- freeze its rows. Each command that inserts a row executes the constraint, except claims. NOT
-- VALID: an upgrade adds it without reading the rows that are there.
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
                    segment     int2        NOT NULL DEFAULT 0,
                    id          text,
                    fingerprint bytea,
                    CONSTRAINT inbox_%1$s_%2$s_pkey PRIMARY KEY (segment, key, destination),
                    CONSTRAINT segment_is_known CHECK (segment >= 0 AND segment <= 63)
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
