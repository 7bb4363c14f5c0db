-- Health checks, one function for each check. idem_health returns their rows. The functions do not
-- use BEGIN ATOMIC, because the names in it would be looked up on the search_path of the session
-- that installs the extension.

CREATE FUNCTION idem.check_worker() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    worker  record;
    pause   interval;
    waited  interval;
    late    text;
BEGIN
    check_name := 'worker';
    SELECT * INTO worker FROM idem.worker_state();
    pause := greatest(worker.naptime_ms * interval '1 millisecond', '1 minute');
    -- A first pass has been due since the server started or the extension was created. It can start
    -- a minute late: once a minute the worker visits the databases in which no session has used
    -- idem.
    SELECT clock_timestamp() - greatest(pg_postmaster_start_time(),
                                        CASE WHEN c.server_started = '-infinity' THEN c.read_at END)
      INTO waited FROM idem.clock c;
    IF pg_is_in_recovery() THEN
        status := 'ok';
        detail := 'standby: nothing to do until it is promoted';
    ELSIF worker.since_pass IS NULL THEN
        status := CASE WHEN waited > 2 * pause THEN 'critical' ELSE 'ok' END;
        detail := CASE status WHEN 'ok'
                              THEN format('no pass yet: the first one starts within %s', 2 * pause)
                              ELSE 'no pass in this database yet: see idem.databases, '
                                   'max_worker_processes and the server log' END;
    ELSE
        status := CASE WHEN worker.since_pass > 5 * pause THEN 'critical' ELSE 'ok' END;
        detail := format('the last pass was %s ago', worker.since_pass)
               || CASE status WHEN 'ok' THEN '' ELSE ': see the server log' END;
    END IF;
    SELECT string_agg(format('%I (%s)', d.datname, p.since_pass), ', ' ORDER BY p.since_pass DESC)
      INTO late
      FROM idem.worker_passes() p JOIN pg_database d ON d.oid = p.database
     WHERE p.since_pass > 5 * pause AND d.datallowconn AND d.datname <> current_database();
    IF late IS NOT NULL THEN
        status := CASE status WHEN 'ok' THEN 'warning' ELSE status END;
        detail := detail || format('. Other databases have had no pass for too long: %s. See '
                                   'idem.databases, max_worker_processes and the server log',
                                   late);
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION idem.check_worker() IS 'Checks that the worker runs its maintenance passes.';

CREATE FUNCTION idem.check_maintenance() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'maintenance',
           CASE WHEN count(*) = 0 THEN 'ok' ELSE 'critical' END,
           coalesce(string_agg(format('step "%s" has failed since %s: %s %s',
                                      e.step, date_trunc('second', e.since), e.sqlstate, e.message),
                               '; ' ORDER BY e.since, e.step),
                    'every step of the last pass succeeded')
      FROM idem.maintenance_error e;
$$;
COMMENT ON FUNCTION idem.check_maintenance() IS 'Reports the maintenance steps that fail.';

CREATE FUNCTION idem.check_clock() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c        idem.clock;
    now_wall timestamptz := clock_timestamp();
BEGIN
    check_name := 'clock';
    SELECT * INTO c FROM idem.clock x WHERE x.id = 1;
    status := 'warning';
    IF now_wall < c.read_at - interval '1 second' THEN
        detail := format('the wall clock is %s behind its reading in the last pass',
                         c.read_at - now_wall);
    ELSIF idem.ran() - c.jumped_at < '1 hour' THEN
        detail := format('the wall clock jumped by %s, %s ago',
                         justify_hours(make_interval(
                             secs => round(extract(epoch FROM c.jumped_by)))),
                         idem.ran() - c.jumped_at);
    ELSE
        status := 'ok';
        detail := 'the wall clock has not jumped in the last hour';
    END IF;
    IF status <> 'ok' THEN
        detail := detail || '. Rotations are not affected, but leases, due times and sent_at '
                            'depend on the wall clock: configure time synchronization so that it '
                            'slews the clock';
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION idem.check_clock() IS
    'Checks that the wall clock runs like the monotonic clock.';

-- Reads at most 10,000 messages of a destination, because a health check must not be slowest when
-- the backlog is largest.
CREATE FUNCTION idem.check_due_times() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'due times',
           CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
           CASE WHEN count(*) = 0 THEN 'no message is due implausibly late'
                ELSE format('messages are due later than a lease, a back-off or a delay usually '
                            'ends, as after a wrong clock: destination %s. See due_at in '
                            'idem.pending, as the owner of the extension',
                            string_agg(format('%s (until %s)', d.name, far.due_at),
                                       ', ' ORDER BY d.name)) END
      FROM idem.destination d
     CROSS JOIN LATERAL (
         SELECT max(w.due_at) AS due_at
           FROM (SELECT x.due_at, x.state FROM idem.pending x
                  WHERE x.destination = d.id
                    AND x.due_at > clock_timestamp() + interval '25 hours'
                    AND x.due_at < 'infinity'
                  ORDER BY x.due_at DESC LIMIT 10000) w
          WHERE w.state = 'l' OR w.due_at > clock_timestamp() + interval '366 days') far
     WHERE far.due_at IS NOT NULL;
$$;
COMMENT ON FUNCTION idem.check_due_times() IS
    'Reports leases that end in more than 25 hours and messages that are due in more than 366 '
    'days.';

CREATE FUNCTION idem.check_destinations()
RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'destinations',
           CASE WHEN d.names > 100000 OR d.ids > 0 THEN 'warning' ELSE 'ok' END,
           format('%s names', d.names)
           || CASE WHEN d.ids > 0 THEN format(', and %s of them are UUIDs, such as %s: a program '
                                              'passes the id as the destination', d.ids, d.example)
                   WHEN d.names > 100000 THEN ': a destination names a consumer, not a message'
                   ELSE '' END
           || CASE WHEN d.names > 100000 OR d.ids > 0
                   THEN '. Remove unused names with @extschema@.idem_remove_destination'
                   ELSE '' END
      FROM (SELECT count(*) AS names, count(*) FILTER (WHERE x.is_id) AS ids,
                   min(x.name) FILTER (WHERE x.is_id) AS example
              FROM (SELECT n.name, n.name ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AS is_id
                      FROM idem.destination n) x) d;
$$;
COMMENT ON FUNCTION idem.check_destinations() IS
    'Reports many destinations, and destinations that are UUIDs.';

-- A fence waits for the transactions that held the lock at the first check of the step. Before this
-- check, it would wait for each transaction that holds the lock now.
CREATE FUNCTION idem.rotation_blockers() RETURNS TABLE (
    ring             text,
    pid              integer,
    usename          name,
    application_name text,
    state            text,
    xact_start       timestamptz,
    gid              text,
    blocks           text
)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    WITH step AS (
        SELECT r.name, r.phase, r.slices[2] AS next, f.lockers
          FROM idem.ring r
          LEFT JOIN idem.fence f
            ON f.name = 'ring ' || r.name AND f.step = idem.published_step(r)
           AND f.server_run = idem.server_run()
         WHERE r.phase <> 'steady'
    ), held AS (
        SELECT l.pid, l.relation, l.mode, l.virtualtransaction FROM pg_locks l
         WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
           AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    ), blocked AS (
        SELECT s.name, h.pid, h.virtualtransaction, false AS is_maintainer,
               CASE s.phase WHEN 'emptying' THEN 'the fence before the TRUNCATE'
                            WHEN 'advancing' THEN 'the fence before the segment advances'
                            ELSE 'the fence before the slices rotate' END AS blocks
          FROM step s JOIN held h ON h.relation = 'idem.ring'::regclass
           AND h.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                          'AccessExclusiveLock')
         WHERE s.lockers IS NULL OR h.virtualtransaction = ANY (s.lockers)
        UNION ALL
        SELECT s.name, h.pid, h.virtualtransaction, false,
               format('TRUNCATE of %s', h.relation::regclass)
          FROM step s JOIN held h ON h.relation = ANY (idem.slice_tables(s.name, s.next)::oid[])
         WHERE s.phase = 'emptying'
        UNION ALL
        -- A session that holds this lock stops each step of maintainers. A maintainer holds it
        -- briefly, so the session is shown after one second.
        SELECT r.name, h.pid, h.virtualtransaction, true, 'the lock of maintenance'
          FROM idem.ring r JOIN held h ON h.relation = 'idem.ring'::regclass
           AND h.mode = 'ShareUpdateExclusiveLock'
         WHERE r.phase <> 'steady' OR idem.is_due(r)
    )
    SELECT DISTINCT b.name, b.pid, coalesce(a.usename, p.owner), a.application_name, a.state,
           coalesce(a.xact_start, p.prepared), p.gid, b.blocks
      FROM blocked b
      LEFT JOIN pg_stat_activity a ON a.pid = b.pid
      -- A prepared transaction has no process. It is identified by the lock on its own id.
      LEFT JOIN (pg_prepared_xacts p
                 JOIN pg_locks x ON x.locktype = 'transactionid' AND x.pid IS NULL
                                AND x.transactionid = p.transaction)
        ON b.pid IS NULL AND x.virtualtransaction = b.virtualtransaction
     WHERE NOT b.is_maintainer OR a.xact_start IS NULL
        OR a.xact_start <= clock_timestamp() - interval '1 second'
    UNION ALL
    SELECT r.name, NULL, NULL, NULL, NULL, NULL, NULL,
           format('relay %s has not acknowledged outbox_%s', h.relay, s.slice)
      FROM idem.ring r
     CROSS JOIN LATERAL (SELECT r.slices[CASE r.phase WHEN 'emptying' THEN 2 ELSE 3 END])
           AS s (slice)
     CROSS JOIN LATERAL unnest(idem.relays_holding(s.slice)) AS h (relay)
     WHERE r.name = 'outbox' AND (r.phase = 'emptying' OR idem.is_due(r))
     ORDER BY 1, 6;
$$;
COMMENT ON FUNCTION idem.rotation_blockers() IS 'Returns the rows of idem_rotation_blockers.';

-- If the retention of a ring was changed, its rotation is due at the time of that change at the
-- earliest. Until the first maintenance pass after a start of the server, the clock of the rings
-- does not count the time since the start, so this function adds it.
CREATE FUNCTION idem.overdue(r idem.ring) RETURNS interval
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT idem.ran() - greatest(r.rotated_at + idem.period(r), r.scheduled_at)
         + CASE WHEN c.server_started = pg_postmaster_start_time() THEN '0'
                ELSE greatest(clock_timestamp() - greatest(pg_postmaster_start_time(), c.read_at),
                              '0') END
      FROM idem.clock c;
$$;
COMMENT ON FUNCTION idem.overdue(idem.ring) IS
    'Returns by how much the next rotation of a ring is late; negative if it is not due.';

CREATE FUNCTION idem.check_rotation() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r         idem.ring;
    late      interval;
    advancing interval;
    problem   text;
    holders   text;
BEGIN
    FOR r IN SELECT * FROM idem.ring x WHERE x.name <> 'outbox' ORDER BY x.id LOOP
        late := justify_hours(date_trunc('second', idem.overdue(r)));
        advancing := CASE r.phase WHEN 'advancing' THEN idem.ran() - r.segment_opened END;
        check_name := 'rotation ' || r.name;
        status := CASE WHEN late > greatest(2 * idem.period(r), '5 minutes') THEN 'critical'
                       WHEN late > greatest(idem.period(r) / 2, '1 minute')
                            OR advancing > '5 minutes' THEN 'warning'
                       ELSE 'ok' END;
        problem := CASE WHEN late > greatest(idem.period(r) / 2, '1 minute')
                        THEN format('late by %s', late)
                        ELSE format('each claim has been stored twice for %s',
                                    justify_hours(date_trunc('second', advancing))) END;
        IF status = 'ok' THEN
            detail := format('rotates every %s, last %s ago',
                             idem.period(r), idem.ran() - r.rotated_at);
        ELSE
            SELECT string_agg(b.what, ', ') INTO holders
              FROM (SELECT CASE WHEN x.pid IS NULL
                                THEN format('prepared transaction %L', x.gid)
                                ELSE format('pid %s (%s, %s)', x.pid, x.application_name, x.blocks)
                           END AS what
                      FROM idem.rotation_blockers() x WHERE x.ring = r.name
                     GROUP BY 1 ORDER BY min(x.xact_start) LIMIT 5) b;
            detail := problem || ': ' || CASE
                WHEN holders IS NOT NULL
                THEN format('it waits for %s: see idem_rotation_blockers()', holders)
                WHEN EXISTS (SELECT 1 FROM idem.maintenance_error e
                              WHERE e.step = 'ring ' || r.name)
                THEN 'its step fails: see the check "maintenance"'
                ELSE 'neither the worker nor CALL idem_maintain() has run its step' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.check_rotation() IS 'Checks that the rings of the inbox rotate in time.';

-- A slice without a good filter matters when it is large. Filters can be disabled by configuration.
CREATE FUNCTION idem.check_filters() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    WITH large AS (
        SELECT f.ring, format('%s slices of ring %s (%s)', count(*), r.name, f.reason) AS what
          FROM idem.filter_states() f JOIN idem.ring r ON r.id = f.ring
         WHERE f.reason IS NOT NULL AND NOT f.is_being_built
           AND pg_relation_size(idem.slice_table(r.name, f.slice)) > 8 * 1024 * 1024
         GROUP BY f.ring, r.name, f.reason)
    SELECT 'filters',
           CASE WHEN NOT w.uses_filters OR l.slices IS NULL THEN 'ok' ELSE 'warning' END,
           CASE WHEN NOT w.uses_filters THEN 'this server uses no filters'
                WHEN l.slices IS NULL THEN 'every large slice has a filter'
                ELSE format('claims read large slices without a good filter: %s. '
                            'idem.filter_memory is %s, and these databases use most of it: %s. '
                            'See idem.filters',
                            l.slices, current_setting('idem.filter_memory'), m.users) END
      FROM (SELECT string_agg(x.what, ', ' ORDER BY x.ring, x.what) AS slices FROM large x) l,
           (SELECT coalesce(string_agg(format('%I (%s)', u.datname, pg_size_pretty(u.bytes)), ', '
                                       ORDER BY u.bytes DESC), 'none') AS users
              FROM (SELECT d.datname, x.bytes
                      FROM idem.filter_memory() x JOIN pg_database d ON d.oid = x.database
                     WHERE x.bytes > 0 ORDER BY x.bytes DESC LIMIT 3) u) m,
           (SELECT NOT pg_is_in_recovery()
                   AND current_setting('idem.filter_memory') <> '0' AS uses_filters) w;
$$;
COMMENT ON FUNCTION idem.check_filters() IS
    'Reports large slices without a good filter, which claims must read.';

-- A relay writes progress only when it has effects. So the check can find out only for a relay with
-- waiting effects that no process runs it.
CREATE FUNCTION idem.check_relays() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('relay %s/%s', v.relay, v.partition),
           CASE WHEN v.lag_seconds > 3600 THEN 'critical'
                WHEN v.lag_seconds > 60 OR v.parked > 0 OR v.waits_for IS NOT NULL THEN 'warning'
                ELSE 'ok' END,
           format('%s effects wait, the oldest for %s s; %s parked',
                  v.lag_messages, round(v.lag_seconds::numeric, 1), v.parked)
           || coalesce('; it waits for ' || left(v.waits_for, 500), '')
           || CASE WHEN v.lag_seconds > 60
                        AND coalesce(v.leased_until, '-infinity') < clock_timestamp()
                        AND coalesce(v.last_step_at, '-infinity')
                            < clock_timestamp() - interval '1 minute'
                   THEN format('; nothing runs it: start a process for this relay. If no process '
                               'will run it again, idem_drop_relay(%L) loses its waiting, delayed '
                               'and parked effects. idem_create_relay(%L, from_oldest => true) '
                               'delivers again what the outbox still has', v.relay, v.relay)
                   ELSE '' END
      FROM idem.relays v ORDER BY v.relay, v.partition;
$$;
COMMENT ON FUNCTION idem.check_relays() IS
    'Reports the backlog of each relay, and whether a process runs it.';

CREATE FUNCTION idem.check_sequences() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'sequences',
           CASE WHEN count(*) = 0 THEN 'ok' ELSE 'critical' END,
           coalesce(string_agg(format('%s is behind: %s is in use', b.sequence, b.used), ', '
                               ORDER BY b.sequence)
                    || ' (logical replication, setval): stop producers and relays, then run '
                       'SELECT @extschema@.idem_repair_relays()',
                    'in order')
      FROM idem.sequences_behind() b;
$$;
COMMENT ON FUNCTION idem.check_sequences() IS
    'Reports sequences that are behind the rows that they number.';

CREATE FUNCTION idem.check_waiting_claims(longest interval DEFAULT '10 seconds')
RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'waiting claims',
           CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
           CASE WHEN count(*) = 0 THEN format('no claim has waited for more than %s', longest)
                ELSE format('%s sessions wait for another transaction for more than %s, the first '
                            'since %s, for %s: see idem.waiting_claims',
                            count(DISTINCT w.pid), longest, date_trunc('second', min(w.since)),
                            (array_agg(CASE WHEN w.blocker_gid IS NULL
                                            THEN format('pid %s (%s, %s)', w.blocked_by,
                                                        w.blocker_application_name,
                                                        w.blocker_state)
                                            ELSE format('prepared transaction %L', w.blocker_gid)
                                       END ORDER BY w.since))[1]) END
      FROM idem.claim_waits() w
     WHERE w.since <= clock_timestamp() - longest;
$$;
COMMENT ON FUNCTION idem.check_waiting_claims(interval) IS
    'Reports claims that have waited for another transaction for longer than the interval.';
