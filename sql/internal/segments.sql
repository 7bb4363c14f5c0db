-- When the present segment of a ring ends.
--
-- The first change of a page after a checkpoint writes the whole page to the WAL. Claims have
-- random keys, so they change every page of the index that belongs to their segment. A shorter
-- segment has fewer pages. But a claim reads every segment of a slice whose filter does not exclude
-- it. So the number of segments has a limit, and a segment only ends while all filters of its ring
-- are good.

CREATE FUNCTION idem.segments_by_time(ring idem.ring) RETURNS integer
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE ring.name WHEN 'short' THEN 2 WHEN 'standard' THEN 32 ELSE 48 END;
COMMENT ON FUNCTION idem.segments_by_time(idem.ring) IS
    'Returns the number of segments of a slice if each of them ends by time.';

CREATE FUNCTION idem.most_segments(ring idem.ring) RETURNS integer
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE ring.name WHEN 'short' THEN 4 ELSE 64 END;
COMMENT ON FUNCTION idem.most_segments(idem.ring) IS
    'Returns the largest number of segments of a slice.';

-- A segment that is shorter than the interval of checkpoints would save nothing.
CREATE FUNCTION idem.segment_duration(ring idem.ring) RETURNS interval
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(idem.period(ring) / idem.segments_by_time(ring),
                    current_setting('checkpoint_timeout')::interval);
$$;
COMMENT ON FUNCTION idem.segment_duration(idem.ring) IS
    'Returns the time after which the present segment of a ring ends.';

-- A claim takes about 60 bytes of its table. The number of claims is taken from the size of the
-- tables, because the statistics can be old.
CREATE FUNCTION idem.bytes_of_many_claims(ring idem.ring) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(250000 * 60::bigint,
                    pg_relation_size(idem.slice_table(ring.name,
                                                      ring.slices[cardinality(ring.slices)]))
                    / idem.most_segments(ring));
$$;
COMMENT ON FUNCTION idem.bytes_of_many_claims(idem.ring) IS
    'Returns the size at which a segment ends early: that of 250,000 claims, or a part of the '
    'newest sealed slice, whichever is larger.';

-- Enough segments remain for those that end by time. While transactions delay the fence, each claim
-- is written to two segments, so the next segment opens ten times that delay later.
CREATE FUNCTION idem.segment_is_due(ring idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    duration     interval;
    now_ran      interval;
    left_by_time double precision;
    grown_by     bigint;
BEGIN
    IF ring.name = 'outbox' OR ring.segment >= idem.most_segments(ring) - 1 THEN
        RETURN false;
    END IF;
    -- A ring without new claims needs no segments, and no look at its filters.
    grown_by := pg_relation_size(idem.slice_table(ring.name, ring.slices[1])) - ring.segment_bytes;
    IF grown_by <= 0 THEN
        RETURN false;
    END IF;
    duration := idem.segment_duration(ring);
    now_ran := idem.ran();
    left_by_time := extract(epoch FROM ring.rotated_at + idem.period(ring) - now_ran)
                    / extract(epoch FROM duration);
    RETURN (now_ran >= ring.segment_opened + duration
            OR (idem.most_segments(ring) - 1 - ring.segment > left_by_time
                AND grown_by > idem.bytes_of_many_claims(ring)))
       AND now_ran >= ring.segment_started + 10 * (ring.segment_started - ring.segment_opened)
       AND NOT EXISTS (SELECT FROM idem.filter_states() f
                        WHERE f.ring = ring.id AND f.reason IS NOT NULL);
END
$$;
COMMENT ON FUNCTION idem.segment_is_due(idem.ring) IS
    'Returns whether the present segment of a ring ends now.';
