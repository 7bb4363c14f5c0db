-- Restores. pg_restore loads one table after the other, in any order, and the worker may run
-- between two tables. Then the state of the rings and the slices do not belong together: the clock
-- of the dump would make every ring of CREATE EXTENSION due, and the slices that were just loaded
-- would be truncated. A consumer would claim with slices that are not loaded yet.
--
-- The first table that is loaded begins the restore (idem.loaded_table). From then on maintenance
-- does nothing, and the functions for users fail with 58000. If one transaction loads all tables of
-- state, its commit ends the restore. Otherwise idem_finish_restore does, because the state does
-- not show whether all slices are loaded. A database in which the rows of state belong to different
-- installations is being restored too. extension/src/ring/{installation,loads}.rs decide. The error
-- is not 55000: clients treat that as a claim or a lease that is not held, so a consumer would
-- reject each message.

CREATE FUNCTION idem.missing_of_restore() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    state   CONSTANT text[] := '{clock,ring,pending_rotation,payload_rotation,installation,relay}';
    needed  text[] := state;
    loaded  text[];
    missing text;
BEGIN
    loaded := ARRAY(SELECT l.name FROM idem.loaded_table l WHERE NOT idem.is_aborted(l.tx));
    IF EXISTS (SELECT FROM unnest(loaded) n WHERE n ~ '^(inbox_|call_|pending_[01]$|dead_letter$)') THEN
        needed := needed || 'destination'::text;
    END IF;
    -- Rows that a person has inserted by hand into a database that is used are no restore.
    SELECT format('the rows of idem.%s', s.name) INTO missing FROM unnest(needed) AS s (name)
     WHERE NOT s.name = ANY (loaded)
       AND (loaded && state
            OR NOT EXISTS (SELECT FROM idem.destination UNION ALL SELECT FROM idem.outbox_row))
     LIMIT 1;
    IF missing IS NOT NULL THEN
        RETURN missing;
    END IF;
    IF EXISTS (SELECT FROM idem.installation i,
                    LATERAL (SELECT c.installation FROM idem.clock c
                             UNION ALL SELECT r.installation FROM idem.ring r
                             UNION ALL SELECT p.installation FROM idem.pending_rotation p
                             UNION ALL SELECT p.installation FROM idem.payload_rotation p) s
                WHERE s.installation <> i.installation) THEN
        RETURN 'the state of one installation: its rows belong to different installations';
    END IF;
    SELECT format('the payload of a message, with seq %s in idem.payload_%s', p.seq,
                  p.payload_slice) INTO missing
      FROM idem.pending p
     WHERE p.payload_slice IS NOT NULL
       AND NOT EXISTS (SELECT FROM idem.payload_row b
                        WHERE b.slice = p.payload_slice AND b.seq = p.seq) LIMIT 1;
    IF missing IS NOT NULL THEN
        RETURN missing;
    END IF;
    SELECT format('the partitions of relay "%s"', r.name) INTO missing FROM idem.relay r
     WHERE r.dropped_at IS NULL
       AND r.partitions <> (SELECT count(*) FROM idem.relay_partition p WHERE p.relay = r.id)
     LIMIT 1;
    IF missing IS NOT NULL THEN
        RETURN missing;
    END IF;
    SELECT format('the value of the sequence %s', b.sequence) INTO missing
      FROM idem.sequences_behind() b LIMIT 1;
    RETURN missing;
END
$$;
COMMENT ON FUNCTION idem.missing_of_restore() IS
    'Returns what a restore has not loaded yet, as far as it can be seen; null if nothing is '
    'missing.';

CREATE FUNCTION idem.forget_aborted_loads() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The trigger of the table makes every session read it again, also if no row is deleted.
    IF EXISTS (SELECT FROM idem.loaded_table l WHERE idem.is_aborted(l.tx)) THEN
        DELETE FROM idem.loaded_table l WHERE idem.is_aborted(l.tx);
    END IF;
END
$$;
COMMENT ON FUNCTION idem.forget_aborted_loads() IS
    'Maintenance step: deletes the notes of loads that were rolled back. Later the server would not '
    'know any more that they were.';

CREATE FUNCTION idem.check_restore() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'restore',
           CASE WHEN r.is_restoring THEN 'critical' ELSE 'ok' END,
           CASE WHEN r.is_restoring
                THEN 'the database is being restored: functions fail and maintenance does nothing. '
                     'When pg_restore has ended without an error: SELECT idem_finish_restore()'
                ELSE 'no restore is in progress' END
      FROM idem.is_restoring() AS r (is_restoring);
$$;
COMMENT ON FUNCTION idem.check_restore() IS 'Reports a restore that is not finished.';

CREATE FUNCTION idem.open_call() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    found_call text;
BEGIN
    -- kind: 0 begun, 1 finished, 2 taken back, 3 failed for good. While a ring is opening, an event
    -- is in two slices.
    EXECUTE format($sql$
        SELECT format('the call "%%s" of the message with the key %%s for destination "%%s"',
                      e.step, e.key, d.name)
          FROM (%s) e JOIN idem.destination d ON d.id = e.destination
         GROUP BY e.key, e.destination, d.name, e.step
        HAVING NOT bool_or(e.kind IN (1, 3))
           AND count(DISTINCT e.event) FILTER (WHERE e.kind = 0)
               > count(DISTINCT e.event) FILTER (WHERE e.kind = 2)
         LIMIT 1
        $sql$, (SELECT string_agg(format('SELECT * FROM %s', t.slice), ' UNION ALL ')
                  FROM idem.ring r, unnest(r.slices) n,
                       unnest((idem.slice_tables(r.name, n))[2:]) AS t (slice)))
       INTO found_call;
    RETURN found_call;
END
$$;
COMMENT ON FUNCTION idem.open_call() IS
    'Describes an external call that was begun and has no known result; null if there is none. '
    'Reads the whole journal.';
