-- The progress of each relay. These functions lock first and then read the newest progress, so they
-- need READ COMMITTED.

CREATE FUNCTION idem.check_relay(relay_name text, partition integer) RETURNS idem.relay
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_relay idem.relay;
BEGIN
    IF relay_name IS NULL THEN
        RAISE EXCEPTION 'relay must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF partition IS NULL THEN
        RAISE EXCEPTION 'partition must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM idem.check_usable();
    SELECT * INTO found_relay FROM idem.relay r WHERE r.name = relay_name AND r.dropped_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'relay "%" does not exist', relay_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it with idem_create_relay, or see the view idem.relays.';
    ELSIF partition < 0 OR partition >= found_relay.partitions THEN
        RAISE EXCEPTION 'relay "%" has no partition %', relay_name, partition
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('Its partitions are 0 to %s.', found_relay.partitions - 1);
    END IF;
    RETURN found_relay;
END
$$;
COMMENT ON FUNCTION idem.check_relay(text, integer) IS
    'Returns the relay with this name, and checks the number of the partition. Errors: 22004, '
    '22023 (no such partition), 42704 (no such relay), 58000.';

CREATE FUNCTION idem.lock_partition(relay integer, partition integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.check_transaction('a function of relays');
    PERFORM 1 FROM idem.relay_partition p
     WHERE p.relay = lock_partition.relay AND p.partition = lock_partition.partition
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the relay has been dropped' USING ERRCODE = 'undefined_object';
    END IF;
    -- Lock before the statement that reads the progress, so that the snapshot of that statement is
    -- newer than every rotation of the tables.
    LOCK TABLE idem.progress_0, idem.progress_1 IN ROW EXCLUSIVE MODE;
END
$$;
COMMENT ON FUNCTION idem.lock_partition(integer, integer) IS
    'Locks a partition until the end of the transaction, so that its operations are serialized. '
    'Errors: 25000, 25006, 42704.';

CREATE FUNCTION idem.progress_of(relay idem.relay, partition integer) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    newest idem.progress;
BEGIN
    SELECT p.* INTO newest FROM idem.progress p
     WHERE p.relay = progress_of.relay.id AND p.partition = progress_of.partition
     ORDER BY p.pos DESC LIMIT 1;
    IF NOT FOUND THEN
        newest.relay := progress_of.relay.id;
        newest.partition := progress_of.partition;
        newest.pos := 0;
        newest.seq_after := 0;
        newest.exhausted := false;
        newest.deferring := false;
        newest.from_delayed := false;
        newest.floor_from := progress_of.relay.start_floor;
        newest.snapshot_from := progress_of.relay.start_snapshot;
    END IF;
    RETURN newest;
END
$$;
COMMENT ON FUNCTION idem.progress_of(idem.relay, integer) IS
    'Returns the newest progress of a partition, or its start if there is none.';

CREATE FUNCTION idem.append_progress(p idem.progress) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before bigint := p.pos;
BEGIN
    p.pos := nextval('idem.progress_pos_seq');
    IF p.pos <= before THEN
        PERFORM idem.fail_behind('progress_pos');
    END IF;
    IF (SELECT t.current = 0 FROM idem.progress_rotation t) THEN
        INSERT INTO idem.progress_0 VALUES (p.*);
    ELSE
        INSERT INTO idem.progress_1 VALUES (p.*);
    END IF;
    RETURN p.pos;
END
$$;
COMMENT ON FUNCTION idem.append_progress(idem.progress) IS
    'Appends a state of a partition and returns its pos, the token of a lease. Error: 58000 (the '
    'sequence is behind).';

CREATE FUNCTION idem.rotate_progress() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    now_in  integer;
    kept_in integer;
    newest  idem.progress[];
    bytes   bigint;
BEGIN
    -- Give up if another maintainer is running: two maintainers that have read the tables and wait
    -- for each other's lock would deadlock.
    LOCK TABLE idem.progress_rotation IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    SELECT t.current INTO now_in FROM idem.progress_rotation t;
    -- The size includes TOAST, where snapshots that list many transactions are stored. 8 MB is
    -- large enough to make rotations rare and small enough to stay in memory.
    bytes := pg_table_size(format('idem.progress_%s', now_in)::regclass);
    IF bytes < 8 * 1024 * 1024 THEN
        RETURN false;
    -- With very many partitions, the newest states alone are large. Rotate only if that makes the
    -- table much smaller.
    ELSIF bytes < 4 * (SELECT sum(200 + pg_column_size(p.snapshot_from)
                                  + coalesce(pg_column_size(p.snapshot_to), 0))
                         FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
                        CROSS JOIN LATERAL idem.progress_of(r, rp.partition) p) THEN
        RETURN false;
    END IF;
    -- Lock in the order in which a relay locks. While the first lock is held no relay can continue,
    -- so the other locks are granted at once or not at all.
    LOCK TABLE idem.progress_0 IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE idem.progress_1, idem.progress_rotation IN ACCESS EXCLUSIVE MODE NOWAIT;
    -- A restore may have begun before the locks were granted. It may have loaded progress of
    -- partitions that it has not loaded yet.
    IF idem.is_restoring() THEN
        RETURN false;
    END IF;
    SELECT t.current INTO now_in FROM idem.progress_rotation t;
    kept_in := 1 - now_in;
    -- Relays wait for the locks above, so this query must be fast: it uses one index look-up for
    -- each partition.
    newest := ARRAY(
        SELECT n.p FROM idem.relay_partition rp CROSS JOIN LATERAL (
            SELECT p FROM idem.progress p
             WHERE p.relay = rp.relay AND p.partition = rp.partition
             ORDER BY p.pos DESC LIMIT 1) n);
    -- The other table still has the rows from before the previous rotation, and the present table
    -- keeps its rows until the next one: TRUNCATE hides rows from older snapshots, and a dump that
    -- began before must find the newest progress in one of the two tables.
    EXECUTE format('TRUNCATE idem.progress_%s', kept_in);
    EXECUTE format('INSERT INTO idem.progress_%s SELECT * FROM unnest($1)', kept_in) USING newest;
    UPDATE idem.progress_rotation SET current = kept_in;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.rotate_progress() IS
    'Maintenance step: truncates the older table of progress, copies the newest state of each '
    'partition into it, and makes it the current one. Returns false if the table is small, if the '
    'copy would not make it much smaller, or if a lock was not available.';
