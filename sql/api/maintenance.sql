-- Maintenance and health.

-- This procedure has neither SECURITY DEFINER nor a SET clause, because a procedure with one of
-- them cannot commit. All names are qualified instead.
CREATE PROCEDURE idem_maintain()
LANGUAGE plpgsql
AS $$
DECLARE
    step   pg_catalog.text;
    done   boolean;
    waited boolean;
BEGIN
    PERFORM idem.check_preloaded();
    FOREACH step IN ARRAY idem.maintenance_steps() LOOP
        waited := false;
        FOR n IN 1 .. 64 LOOP
            -- The commit must not wait for a standby, because the step holds its locks until the
            -- commit has ended. This loses nothing: a standby that has the commit of a client also
            -- has each step that the client has seen.
            SET LOCAL synchronous_commit = local;
            done := idem.maintain_step(step);
            COMMIT;
            -- The wait holds no lock of maintenance, so other maintainers do other steps.
            waited := NOT done AND NOT waited AND idem.wait_at_fence(step);
            COMMIT;
            EXIT WHEN NOT done AND NOT waited;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE idem_maintain() IS
    'Runs one maintenance pass, as the worker does, with each step in a transaction of its own. A '
    'step that fails is reported as a warning, and the other steps continue. Errors: 25000 (not '
    'READ COMMITTED), 2D000 (inside a transaction block).';

CREATE FUNCTION idem_health() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r       idem.ring;
    late    interval;
    holders text[];
    behind  text;
BEGIN
    IF NOT idem.is_preloaded() THEN
        RETURN QUERY SELECT 'worker', 'critical',
            'the server has not loaded the library of idem at its start, so every function of idem '
            'fails. Add idem to shared_preload_libraries (shared_preload_libraries = ''idem''), and '
            'restart the server.';
        RETURN;
    END IF;
    RETURN QUERY SELECT c.* FROM idem.check_restore() c;
    RETURN QUERY SELECT c.* FROM idem.check_worker() c;
    RETURN QUERY SELECT c.* FROM idem.check_clock() c;
    RETURN QUERY SELECT c.* FROM idem.check_maintenance() c;
    RETURN QUERY SELECT c.* FROM idem.check_rotation() c;
    RETURN QUERY SELECT c.* FROM idem.check_filters() c;
    RETURN QUERY SELECT c.* FROM idem.check_waiting_claims() c;

    -- the outbox
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'outbox';
    holders := idem.relays_holding(r.slices[CASE r.phase WHEN 'emptying' THEN 2 ELSE 3 END]);
    check_name := 'outbox';
    IF cardinality(holders) > 0 AND (r.phase = 'emptying' OR idem.is_due(r)) THEN
        status := 'critical';
        detail := format('the oldest slice cannot be truncated: relay %s has not acknowledged it. '
                         'The outbox grows until the relay runs again: see its checks',
                         array_to_string(holders, ', '));
    ELSIF r.phase = 'emptying' AND idem.ran() - r.rotated_at > '5 minutes' THEN
        status := 'warning';
        detail := format('the TRUNCATE of the oldest slice has waited for %s: see '
                         'idem_rotation_blockers()',
                         date_trunc('second', idem.ran() - r.rotated_at));
    ELSE
        status := 'ok';
        detail := format('size %s',
                         pg_size_pretty((
                             SELECT sum(pg_total_relation_size(idem.slice_table('outbox', s)))
                               FROM unnest(r.slices) s)));
    END IF;
    RETURN NEXT;

    RETURN QUERY SELECT c.* FROM idem.check_relays() c;
    RETURN QUERY SELECT c.* FROM idem.check_sequences() c;
    RETURN QUERY SELECT c.* FROM idem.check_due_times() c;

    -- the durable inbox
    check_name := 'durable inbox';
    SELECT d.name, clock_timestamp() - w.due_at INTO behind, late
      FROM idem.destination d
     CROSS JOIN LATERAL (SELECT x.due_at FROM idem.pending x
                          WHERE x.destination = d.id AND x.payload_slice IS NOT NULL
                          ORDER BY x.due_at LIMIT 1) w
     ORDER BY w.due_at LIMIT 1;
    status := CASE WHEN late > '1 hour' THEN 'critical'
                   WHEN late > '1 minute' THEN 'warning'
                   ELSE 'ok' END;
    detail := CASE WHEN status = 'ok' THEN 'no message is late'
                   ELSE format('destination %s: the first due message has waited for %s: check '
                               'that its consumers run',
                               behind, date_trunc('second', late)) END;
    RETURN NEXT;

    -- dead letters
    check_name := 'dead letters';
    SELECT format('%s, of destination %s: see idem.dead_letters, then use idem_requeue or '
                  'idem_discard',
                  sum(l.n), string_agg(d.name, ', ' ORDER BY d.name)),
           string_agg(d.name, ', ' ORDER BY d.name)
               FILTER (WHERE l.n >= 0.8 * current_setting('idem.max_dead_letters')::integer)
      INTO detail, behind
      FROM (SELECT x.destination, count(*) AS n FROM idem.dead_letter x GROUP BY x.destination) l
      JOIN idem.destination d ON d.id = l.destination
    HAVING count(*) > 0;
    status := CASE WHEN detail IS NULL THEN 'ok'
                   WHEN behind IS NULL THEN 'warning'
                   ELSE 'critical' END;
    detail := coalesce(detail, 'none')
           || coalesce('. Destination ' || behind || ' is near idem.max_dead_letters: above this '
                       'limit rejected messages stay at their brokers, and consumers pause', '');
    RETURN NEXT;

    RETURN QUERY SELECT c.* FROM idem.check_destinations() c;

    -- transaction ids
    check_name := 'transaction ids';
    BEGIN
        PERFORM idem.check_xids(p)
           FROM idem.relay_partition rp
           JOIN idem.relay x ON x.id = rp.relay AND x.dropped_at IS NULL
          CROSS JOIN LATERAL idem.progress_of(x, rp.partition) p;
        status := 'ok';
        detail := 'in order';
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        status := 'critical';
        detail := 'they went backwards (a restore into a younger cluster): stop producers and '
                  'relays, then run SELECT @extschema@.idem_repair_relays()';
    END;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION idem_health() IS
    'Returns one row for each check: status is ok, warning or critical, and detail is the problem '
    'and what to do. Works on a standby.';

CREATE FUNCTION idem_rotation_blockers() RETURNS TABLE (
    ring             text,
    pid              integer,
    usename          name,
    application_name text,
    state            text,
    xact_start       timestamptz,
    gid              text,
    blocks           text
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT b.* FROM idem.check_preloaded(), idem.rotation_blockers() b;
$$;
COMMENT ON FUNCTION idem_rotation_blockers() IS
    'Returns what the rotations wait for, with the oldest transaction of each ring first: '
    'sessions, prepared transactions (with gid; xact_start is the time at which they were '
    'prepared) and relays. blocks: the step of the rotation that waits.';
