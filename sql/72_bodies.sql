-- What received messages carry is insert-only, in four slices used in turn. A slice that no work refers to is truncated; before the turn comes
-- to one that still holds survivors (messages that wait for long) these are copied to the current slice.

-- No writer of work is under way while the turn is made: whoever has taken a slice for the current one has committed or is gone, so what
-- no visible work refers to nobody will.
CREATE FUNCTION idem.turn_bodies(least_bytes bigint DEFAULT 33554432, rest interval DEFAULT '10 seconds') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    turn   idem.body_turn;
    sizes  bigint[] := ARRAY(SELECT pg_relation_size(format('idem.body_%s', s)::regclass) FROM generate_series(0, 3) s ORDER BY s);
    work   integer;
    n      integer;
    other  integer;
    in_use int2[];  -- null: no slice is
BEGIN
    IF (SELECT sum(bytes) FROM unnest(sizes) bytes) = 0 THEN
        RETURN false;
    END IF;
    work := idem.enter_work();
    SELECT * INTO turn FROM idem.body_turn t WHERE t.id = 1 FOR UPDATE;
    EXECUTE format('SELECT array_agg(DISTINCT w.body) FROM idem.work_%s w WHERE w.body IS NOT NULL', work) INTO in_use;

    FOR n IN 0 .. 3 LOOP
        CONTINUE WHEN n = turn.current OR sizes[n + 1] = 0 OR coalesce(n = ANY (in_use), false);
        IF turn.unused_since[n + 1] = 'infinity' THEN
            UPDATE idem.body_turn SET unused_since[n + 1] = clock_timestamp() WHERE id = 1;
            RETURN true;
        ELSIF turn.unused_since[n + 1] + rest <= clock_timestamp() THEN
            -- Later than what emptied it: TRUNCATE hides rows from older snapshots, and a dump that has begun must have had the time
            -- to lock what it is going to read.
            EXECUTE format('LOCK TABLE idem.body_%s IN ACCESS EXCLUSIVE MODE', n);
            EXECUTE format('TRUNCATE idem.body_%s', n);
            UPDATE idem.body_turn SET unused_since[n + 1] = 'infinity' WHERE id = 1;
            RETURN true;
        END IF;
    END LOOP;

    -- A quarter of what there is: whoever has much that waits copies it seldom.
    IF sizes[turn.current + 1] < greatest(least_bytes, (SELECT sum(bytes) FROM unnest(sizes) bytes) / 4) THEN
        RETURN false;
    END IF;
    other := (turn.current + 1) % 4;
    IF sizes[other + 1] > 0 THEN
        RETURN coalesce(other = ANY (in_use), false) AND idem.move_survivors(work, other, turn.current);
    END IF;
    LOCK TABLE idem.work_0, idem.work_1 IN SHARE MODE;
    UPDATE idem.body_turn SET current = other WHERE id = 1;
    RETURN true;
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.turn_bodies(bigint, interval) IS 'One step of the slices of bodies: notes that one is unused, empties it, copies survivors, turns. True when one was done.';

CREATE FUNCTION idem.move_survivors(work integer, from_slice integer, to_slice integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moved bigint;
BEGIN
    -- Who holds one at the moment keeps it; it is moved in a later pass.
    EXECUTE format($sql$
        WITH survivor AS MATERIALIZED (
            SELECT w.key, w.destination, w.seq FROM idem.work_%1$s w WHERE w.body = %2$s LIMIT 1000 FOR UPDATE SKIP LOCKED
        ), copied AS (
            INSERT INTO idem.body_%3$s
            SELECT b.* FROM survivor s JOIN idem.body_%2$s b ON b.seq = s.seq
        )
        UPDATE idem.work_%1$s w SET body = %3$s FROM survivor s WHERE w.key = s.key AND w.destination = s.destination
        $sql$, work, from_slice, to_slice);
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved > 0;
END
$$;
COMMENT ON FUNCTION idem.move_survivors(integer, integer, integer) IS 'Copies bodies that work still refers to, at most 1000; true when there were some.';
