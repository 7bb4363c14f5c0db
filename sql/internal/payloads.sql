-- Payloads of received messages are insert-only, in four slices that are used in rotation. A slice
-- that no pending message refers to is truncated. Before the rotation reaches a slice that still
-- holds payloads, these payloads are copied to the current slice.
--
-- Each execution of idem.rotate_payloads does at most one short step. No step waits for a lock that
-- a claimer holds. The current slice changes without a fence. A receiver that began before may
-- still write into the old slice, so this slice is checked for payloads in use only after the
-- fence.

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
    quiet_time  interval DEFAULT '10 seconds'
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
    RETURN idem.look_for_unused_payloads(r, sizes, quiet_time)
        OR (is_full AND idem.move_payloads(r, next));
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.rotate_payloads(bigint, interval) IS
    'Maintenance step: does one step for the slices of payloads: records that a slice is unused, '
    'truncates it, copies payloads, or rotates. least_bytes: the size of the current slice from '
    'which it rotates. quiet_time: the time between the check that a slice is unused and its '
    'TRUNCATE, and between two checks. Returns true if a step was done.';

-- The TRUNCATE follows some time after the slice became unused: TRUNCATE hides rows from older
-- snapshots, and a dump that has begun needs the time to lock the tables that it reads. The step
-- also ends if the slice is in use again, because it holds the lock on the slice until its commit.
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
            IF EXISTS (SELECT FROM idem.pending p WHERE p.payload_slice = slice)
               OR idem.is_restoring() THEN
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
    quiet_time interval
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
    ELSIF NOT idem.fence('payloads', 'rotated ' || r.rotations, 'idem.ring') THEN
        RETURN false;
    END IF;
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
    idem.payload_rotation, bigint[], interval
) IS
    'Records which slices of payloads no pending message refers to; returns whether that changed.';

-- The copy reads the pending messages by their primary key and stores its position, so a large
-- backlog is read once. It skips a row that another transaction has locked, and copies the payload
-- of that row when it reads all rows again. A step copies 500 payloads or about 1 MB, because its
-- rows stay locked until it commits.
CREATE FUNCTION idem.move_payloads(r idem.payload_rotation, from_slice integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off
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
