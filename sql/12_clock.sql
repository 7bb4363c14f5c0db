-- The clock of the rings. Rotations do not compare readings of the wall clock, which can jump, but readings of `ran`: what the
-- monotonic clock has counted while the server ran. See extension/src/ring/clock.rs.

CREATE TABLE idem.clock (
    id             int2        NOT NULL DEFAULT 1,
    zero_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    read_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    server_started timestamptz NOT NULL DEFAULT '-infinity',
    ran            interval    NOT NULL DEFAULT '0',
    monotonic      interval    NOT NULL DEFAULT '0',
    jumped_at      interval,
    jumped_by      interval,
    CONSTRAINT clock_pkey PRIMARY KEY (id),
    CONSTRAINT clock_is_one_row CHECK (id = 1)
);
COMMENT ON TABLE  idem.clock IS 'The clock that the rings rotate by. Each pass of maintenance writes it down, at most every ten seconds.';
COMMENT ON COLUMN idem.clock.zero_at IS 'What the wall clock shows when ran is zero: ran + zero_at is the wall clock. It changes when the wall clock jumps, and with a restart.';
COMMENT ON COLUMN idem.clock.read_at IS 'The wall clock at this reading.';
COMMENT ON COLUMN idem.clock.server_started IS 'The run of the server that has read the monotonic clock.';
COMMENT ON COLUMN idem.clock.ran IS 'The time that is certain to have passed since the extension was created.';
COMMENT ON COLUMN idem.clock.monotonic IS 'The monotonic clock at this reading.';
COMMENT ON COLUMN idem.clock.jumped_at IS 'When (a reading of ran) the last jump of the wall clock was noticed.';
COMMENT ON COLUMN idem.clock.jumped_by IS 'By how much the wall clock jumped.';
CREATE TRIGGER replace_row BEFORE INSERT ON idem.clock FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
ALTER TABLE idem.clock ENABLE ALWAYS TRIGGER replace_row;
INSERT INTO idem.clock (id) VALUES (1);
SELECT pg_catalog.pg_extension_config_dump('idem.clock', '');

-- A jump is what the wall clock has moved beyond the monotonic clock, or below what it showed before a restart. Half a second
-- is no jump: time services correct as much at once.
CREATE FUNCTION idem.tick() RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c        idem.clock;
    same_run boolean;
    here     timestamptz;
    off      interval;
    jump     interval;
    before   interval;
BEGIN
    -- The lock comes first: what another session has counted meanwhile is not counted twice.
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1 FOR UPDATE;
    before := c.ran;
    same_run := c.server_started = pg_postmaster_start_time();
    c.ran := idem.ran();
    c.monotonic := idem.monotonic();
    here := clock_timestamp();
    off := here - c.ran - c.zero_at;
    jump := CASE WHEN same_run THEN (here - c.read_at) - (c.ran - before) WHEN here < c.read_at THEN here - c.read_at ELSE '0' END;
    IF off NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        c.zero_at := here - c.ran;
        PERFORM idem.invalidate('idem.ring'::regclass);
    END IF;
    IF jump NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        c.jumped_at := c.ran;
        c.jumped_by := jump;
    END IF;
    UPDATE idem.clock x
       SET zero_at = c.zero_at, read_at = here, server_started = pg_postmaster_start_time(), ran = c.ran, monotonic = c.monotonic,
           jumped_at = c.jumped_at, jumped_by = c.jumped_by
     WHERE x.id = 1;
    RETURN c.ran;
END
$$;
COMMENT ON FUNCTION idem.tick() IS 'Writes the clock of the rings down and returns its reading. Later readings are never smaller.';

CREATE FUNCTION idem.keep_clock() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c idem.clock;
BEGIN
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1;
    -- Time since the last written reading is lost at a restart. Each written reading leaves a dead row version.
    IF c.server_started <> pg_postmaster_start_time() OR idem.ran() - c.ran >= '10 seconds'
       OR clock_timestamp() - idem.ran() - c.zero_at NOT BETWEEN '-0.5 seconds' AND '0.5 seconds' THEN
        PERFORM idem.tick();
    END IF;
END
$$;
COMMENT ON FUNCTION idem.keep_clock() IS 'The step of maintenance that writes the clock down: every ten seconds, after a restart, and when the wall clock has jumped.';

CREATE FUNCTION idem.period(retention interval) RETURNS interval
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT (retention OPERATOR(pg_catalog.-) pg_catalog.make_interval(months => m.months)
                OPERATOR(pg_catalog.+) pg_catalog.make_interval(days => m.months OPERATOR(pg_catalog.*) 31)) OPERATOR(pg_catalog./) 2
          FROM (SELECT (12 OPERATOR(pg_catalog.*) EXTRACT(year FROM retention) OPERATOR(pg_catalog.+) EXTRACT(month FROM retention))::integer) AS m (months));
COMMENT ON FUNCTION idem.period(interval) IS 'How long a slice is current: two sealed slices hold the retention. A month counts 31 days.';
