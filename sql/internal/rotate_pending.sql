-- The rotation of the pending messages. Updated and deleted rows leave dead versions, and a
-- transaction with an old snapshot keeps VACUUM from removing them. A rotation copies the live rows
-- into the other table and makes it the current table.
--
-- A rotation is short: it runs only when the table is large and its live rows are few. A claim
-- waits at most 50 ms for the rotation to begin, and then until it commits. The rotation does not
-- wait for the lock of the other table. A maintainer first locks idem.pending_rotation, and gives
-- up if another maintainer holds this lock. Otherwise two maintainers that have read a table could
-- both wait for its lock, which is a deadlock.
--
-- A writer locks the current table and then checks that it still is the current one. The old table
-- keeps its rows until the next rotation, for a dump with an older snapshot. The row of a message
-- of a broker that has been due for longer than the longest retention is not copied: if the message
-- is redelivered, its attempts are counted from the beginning.

CREATE FUNCTION idem.pending_table(table_number integer) RETURNS regclass
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN table_number = 0 THEN 'idem.pending_0'::pg_catalog.regclass
            ELSE 'idem.pending_1'::pg_catalog.regclass END;
COMMENT ON FUNCTION idem.pending_table(integer) IS
    'Returns one of the two tables of pending messages, 0 or 1.';

-- A table of up to 4 MB stays in memory and is not large. A larger table must have three times its
-- size after the last rotation, so that rotations are rare while many messages are pending.
CREATE FUNCTION idem.pending_is_large(rotation idem.pending_rotation) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.pg_relation_size(idem.pending_table((rotation).current))
       OPERATOR(pg_catalog.>) greatest(4 OPERATOR(pg_catalog.*) 1024 OPERATOR(pg_catalog.*) 1024,
                                       3 OPERATOR(pg_catalog.*) (rotation).bytes);
COMMENT ON FUNCTION idem.pending_is_large(idem.pending_rotation) IS
    'Returns whether the current table is large enough for a rotation.';

-- Few means at most 2,000 rows and 2 MB. The copy takes about 10 microseconds for each row with its
-- entries in three indexes, so the tables are locked for about 20 ms.
CREATE FUNCTION idem.pending_rows_are_few(table_number integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    at_most    constant integer := 2000;
    most_bytes constant integer := 2 * 1024 * 1024;
    live       integer;
    bytes      bigint;
BEGIN
    IF table_number = 0 THEN
        SELECT count(*), sum(200 + pg_column_size(p.errors)) INTO live, bytes
          FROM (SELECT x.errors FROM idem.pending_0 x LIMIT at_most + 1) p;
    ELSE
        SELECT count(*), sum(200 + pg_column_size(p.errors)) INTO live, bytes
          FROM (SELECT x.errors FROM idem.pending_1 x LIMIT at_most + 1) p;
    END IF;
    RETURN live <= at_most AND coalesce(bytes, 0) <= most_bytes;
END
$$;
COMMENT ON FUNCTION idem.pending_rows_are_few(integer) IS
    'Returns whether the live rows of a table of pending messages are few enough for a rotation.';

CREATE FUNCTION idem.rotate_pending() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms' SET jit = off
AS $$
DECLARE
    rotation idem.pending_rotation;
    next     integer;
BEGIN
    LOCK TABLE idem.pending_rotation IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    SELECT * INTO rotation FROM idem.pending_rotation r WHERE r.id = 1;
    IF NOT idem.pending_is_large(rotation) OR NOT idem.pending_rows_are_few(rotation.current) THEN
        RETURN idem.note_no_pending(rotation);
    END IF;
    next := 1 - rotation.current;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', idem.pending_table(rotation.current));
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', idem.pending_table(next));
    -- Check again, because new rows may have been committed before the locks were granted, and a
    -- restore may have begun.
    IF NOT idem.pending_rows_are_few(rotation.current) OR idem.is_restoring() THEN
        RETURN false;
    END IF;
    -- The other table still has the rows from before the previous rotation, and the present table
    -- keeps its rows until the next one: TRUNCATE hides rows from older snapshots, and a dump that
    -- began before must find the pending messages in one of the two tables.
    EXECUTE format('TRUNCATE %s', idem.pending_table(next));
    -- Do not copy a row of a broker's message that has been due for longer than the longest
    -- retention. A claim of that age is forgotten too.
    EXECUTE format('INSERT INTO %s SELECT p.* FROM %s p '
                   'WHERE p.payload_slice IS NOT NULL OR p.due_at >= $1',
                   idem.pending_table(next), idem.pending_table(rotation.current))
      USING clock_timestamp() - (SELECT max(r.retention) FROM idem.ring r WHERE r.name <> 'outbox');
    UPDATE idem.pending_rotation r
       SET current = next, bytes = pg_relation_size(idem.pending_table(next))
     WHERE r.id = 1;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.rotate_pending() IS
    'Maintenance step: copies the live rows into the other table of pending messages and makes it '
    'the current one. Returns false when the table is small, its live rows are many, or a lock '
    'was not available.';

-- While no message is pending, claims skip the look-up: see extension/src/pending/presence.rs. To
-- set the note to none, the maintainer needs the same locks as for a rotation, and claims wait for
-- them. It takes these locks rarely: only in a pass after one that found no pending message, if no
-- message was written in between.
CREATE FUNCTION idem.note_no_pending(rotation idem.pending_rotation) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET jit = off
AS $$
BEGIN
    IF idem.pending_presence() = 'none' OR idem.has_pending(rotation.current) THEN
        RETURN false;
    ELSIF idem.pending_presence() = 'some' THEN
        PERFORM idem.set_pending_presence('quiet');
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', idem.pending_table(rotation.current));
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT',
                   idem.pending_table(1 - rotation.current));
    IF NOT idem.has_pending(rotation.current) AND NOT idem.is_restoring() THEN
        PERFORM idem.set_pending_presence('none');
    END IF;
    RETURN false;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.note_no_pending(idem.pending_rotation) IS
    'Stores in shared memory that no message is pending, if none is. Always returns false, '
    'because this is not a step of a rotation.';

CREATE FUNCTION idem.has_pending(table_number integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    IF table_number = 0 THEN
        RETURN EXISTS (SELECT FROM idem.pending_0);
    END IF;
    RETURN EXISTS (SELECT FROM idem.pending_1);
END
$$;
COMMENT ON FUNCTION idem.has_pending(integer) IS
    'Returns whether a table of pending messages has a live row.';
