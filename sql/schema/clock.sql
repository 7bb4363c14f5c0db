-- The clock of the rings. Rotations do not compare readings of the wall clock, which can jump. They
-- compare readings of the column ran: the time that the monotonic clock has counted while the
-- server ran. See extension/src/ring/clock.rs.

CREATE TABLE idem.clock (
    id             int2        NOT NULL DEFAULT 1,
    zero_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    read_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    server_started timestamptz NOT NULL DEFAULT '-infinity',
    ran            interval    NOT NULL DEFAULT '0',
    monotonic      interval    NOT NULL DEFAULT '0',
    jumped_at      interval,
    jumped_by      interval,
    installation   uuid        NOT NULL,
    CONSTRAINT clock_pkey PRIMARY KEY (id),
    CONSTRAINT clock_is_one_row CHECK (id = 1)
);
COMMENT ON TABLE  idem.clock IS
    'The clock that decides when the rings rotate. Each maintenance pass stores a reading, at '
    'most every ten seconds.';
COMMENT ON COLUMN idem.clock.zero_at IS
    'The wall clock time at which ran is zero: ran + zero_at is the wall clock. The value changes '
    'when the wall clock jumps, and at a restart.';
COMMENT ON COLUMN idem.clock.read_at IS 'The wall clock at this reading.';
COMMENT ON COLUMN idem.clock.server_started IS
    'The start time of the server that read the monotonic clock.';
COMMENT ON COLUMN idem.clock.ran IS
    'The time that has certainly passed since the extension was created.';
COMMENT ON COLUMN idem.clock.monotonic IS 'The monotonic clock of the system at this reading.';
COMMENT ON COLUMN idem.clock.jumped_at IS
    'The reading of ran when the last jump of the wall clock was detected.';
COMMENT ON COLUMN idem.clock.jumped_by IS 'The size of that jump of the wall clock.';
INSERT INTO idem.clock (installation) SELECT i.installation FROM idem.installation i;
