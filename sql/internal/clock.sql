-- Reads and stores the clock of the rings.

-- The wall clock has jumped if it has moved by another amount than the monotonic clock, or if after
-- a restart it shows an earlier time than before. A difference of up to half a second does not
-- count, because time services correct that much at once.
CREATE FUNCTION idem.tick() RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c          idem.clock;
    same_run   boolean;
    now_wall   timestamptz;
    off        interval;
    jump       interval;
    ran_before interval;
BEGIN
    -- Lock the row before reading the clock, so that the time that another session has added is not
    -- added again.
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1 FOR UPDATE;
    ran_before := c.ran;
    same_run := c.server_started = pg_postmaster_start_time();
    c.ran := idem.ran();
    c.monotonic := idem.monotonic();
    now_wall := clock_timestamp();
    off := now_wall - c.ran - c.zero_at;
    jump := CASE WHEN same_run THEN (now_wall - c.read_at) - (c.ran - ran_before)
                 WHEN now_wall < c.read_at THEN now_wall - c.read_at
                 ELSE '0' END;
    IF off NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        c.zero_at := now_wall - c.ran;
        PERFORM idem.invalidate('idem.ring'::regclass);
    END IF;
    IF jump NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        c.jumped_at := c.ran;
        c.jumped_by := jump;
    END IF;
    UPDATE idem.clock x
       SET zero_at = c.zero_at,
           read_at = now_wall,
           server_started = pg_postmaster_start_time(),
           ran = c.ran,
           monotonic = c.monotonic,
           jumped_at = c.jumped_at,
           jumped_by = c.jumped_by
     WHERE x.id = 1;
    RETURN c.ran;
END
$$;
COMMENT ON FUNCTION idem.tick() IS
    'Stores the clock of the rings and returns the reading of ran. Later readings are never '
    'smaller.';

CREATE FUNCTION idem.keep_clock() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
AS $$
DECLARE
    c idem.clock;
BEGIN
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1;
    -- A restart loses the time since the last stored reading, so a reading is stored every ten
    -- seconds. Readings are not stored more often, because each leaves a dead row version.
    IF c.server_started <> pg_postmaster_start_time() OR idem.ran() - c.ran >= '10 seconds'
       OR clock_timestamp() - idem.ran() - c.zero_at
          NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        PERFORM idem.tick();
    END IF;
EXCEPTION
    WHEN lock_not_available THEN
        -- A restore replaces the row: the next pass stores a reading.
        NULL;
END
$$;
COMMENT ON FUNCTION idem.keep_clock() IS
    'Maintenance step: stores the clock every ten seconds, after a restart, and when the wall '
    'clock has jumped.';

CREATE FUNCTION idem.period(ring idem.ring) RETURNS interval
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT (ring.retention OPERATOR(pg_catalog.-) pg_catalog.make_interval(months => m.months)
                OPERATOR(pg_catalog.+)
                pg_catalog.make_interval(days => m.months OPERATOR(pg_catalog.*) 31))
               OPERATOR(pg_catalog./)
               (pg_catalog.cardinality(ring.slices) OPERATOR(pg_catalog.-) 2)
          FROM (SELECT (12 OPERATOR(pg_catalog.*) EXTRACT(year FROM ring.retention)
                        OPERATOR(pg_catalog.+) EXTRACT(month FROM ring.retention))::integer)
               AS m (months));
COMMENT ON FUNCTION idem.period(idem.ring) IS
    'Returns the time for which a slice is current: the retention divided by the number of sealed '
    'slices, because these hold the retention. A month counts 31 days.';
