-- The health check: one row a check. For the engineer on call: what is wrong, and what to do.

CREATE FUNCTION idem_health() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r       idem.ring;
    worker  record;
    relay   record;
    late    interval;
    holders text[];
    behind  text;
BEGIN
    -- worker
    SELECT * INTO worker FROM idem.worker_state();
    IF NOT worker.preloaded THEN
        RETURN QUERY VALUES ('worker', 'warning', 'idem is not preloaded: no worker, no counters, no wake-up. Add idem to shared_preload_libraries (shared_preload_libraries = ''idem'') and restart, or CALL idem_maintain() every minute.');
    ELSIF pg_is_in_recovery() THEN
        RETURN QUERY VALUES ('worker', 'ok', 'standby: nothing to do until it is promoted');
    ELSIF worker.last_pass IS NULL THEN
        RETURN QUERY VALUES ('worker', CASE WHEN clock_timestamp() - pg_postmaster_start_time() > '2 minutes' THEN 'critical' ELSE 'warning' END,
                             'no pass in this database yet: see idem.databases, max_worker_processes and the server log');
    ELSIF clock_timestamp() - worker.last_pass > greatest('1 minute', 5 * worker.naptime_ms * interval '1 millisecond') THEN
        RETURN QUERY VALUES ('worker', 'critical', format('the last pass was %s ago: see the server log', date_trunc('second', clock_timestamp() - worker.last_pass)));
    ELSE
        RETURN QUERY VALUES ('worker', 'ok', format('the last pass was %s ago', clock_timestamp() - worker.last_pass));
    END IF;

    -- the steps of maintenance
    check_name := 'maintenance';
    SELECT string_agg(format('step "%s" has failed since %s: %s %s', e.step, date_trunc('second', e.since), e.sqlstate, e.message), '; ' ORDER BY e.since, e.step)
      INTO detail FROM idem.maintenance_error e;
    status := CASE WHEN detail IS NULL THEN 'ok' ELSE 'critical' END;
    detail := coalesce(detail, 'every step of the last pass succeeded');
    RETURN NEXT;

    -- rotation of the inbox
    FOR r IN SELECT * FROM idem.ring x WHERE x.name <> 'outbox' ORDER BY x.id LOOP
        late := idem.ran() - r.turned_at - idem.period(r.retention);
        check_name := 'rotation ' || r.name;
        IF late > greatest(r.retention, '5 minutes') THEN
            status := 'critical';
        ELSIF late > greatest(r.retention / 4, '1 minute') THEN
            status := 'warning';
        ELSE
            status := 'ok';
        END IF;
        detail := CASE
            WHEN status = 'ok' THEN format('turns every %s, last %s ago', idem.period(r.retention), idem.ran() - r.turned_at)
            WHEN r.opening OR r.emptying THEN
                format('late by %s: it waits for transactions that hold a claim (in pg_locks: mode RowExclusiveLock on idem.ring; prepared transactions too) or read slice %s',
                       late, idem.slice_table(r.name, (r.current + 1) % 4))
            ELSE format('late by %s: no worker and nobody who calls idem_maintain()', late) END;
        RETURN NEXT;
    END LOOP;

    -- the outbox
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'outbox';
    holders := idem.relays_holding(CASE WHEN r.emptying THEN (r.current + 1) % 4 ELSE (r.current + 2) % 4 END);
    check_name := 'outbox';
    IF cardinality(holders) > 0 AND (r.emptying OR idem.ran() > r.turned_at + idem.period(r.retention)) THEN
        status := 'critical';
        detail := format('the outbox cannot forget: relay %s has not acknowledged its oldest slice. It grows until the relay runs again, or is dropped with idem_drop_relay.',
                         array_to_string(holders, ', '));
    ELSE
        status := 'ok';
        detail := format('%s kept', pg_size_pretty((SELECT sum(pg_total_relation_size(idem.slice_table('outbox', s))) FROM generate_series(0, 3) s)));
    END IF;
    RETURN NEXT;

    -- relays
    FOR relay IN SELECT v.relay, v.partition, v.lag_messages, v.lag_seconds, v.parked FROM idem.relays v ORDER BY v.relay, v.partition LOOP
        check_name := format('relay %s/%s', relay.relay, relay.partition);
        status := CASE WHEN relay.lag_seconds > 3600 THEN 'critical' WHEN relay.lag_seconds > 60 OR relay.parked > 0 THEN 'warning' ELSE 'ok' END;
        detail := format('%s effects wait, the oldest for %s s; %s parked', relay.lag_messages, round(relay.lag_seconds::numeric, 1), relay.parked);
        RETURN NEXT;
    END LOOP;

    -- the durable inbox
    check_name := 'durable inbox';
    SELECT d.name, clock_timestamp() - w.due_at INTO behind, late
      FROM idem.destination d
     CROSS JOIN LATERAL (SELECT x.due_at FROM idem.work x WHERE x.destination = d.id AND x.body IS NOT NULL ORDER BY x.due_at LIMIT 1) w
     ORDER BY w.due_at LIMIT 1;
    status := CASE WHEN late > '1 hour' THEN 'critical' WHEN late > '1 minute' THEN 'warning' ELSE 'ok' END;
    detail := CASE WHEN status = 'ok' THEN 'nothing waits for long'
                   ELSE format('destination %s: the first message that is due has waited for %s; do its consumers run?', behind, date_trunc('second', late)) END;
    RETURN NEXT;

    -- dead letters
    check_name := 'dead letters';
    SELECT format('%s, of destination %s: SELECT * FROM idem.dead_letters, then idem_requeue or idem_discard', sum(l.n), string_agg(d.name, ', ' ORDER BY d.name))
      INTO detail
      FROM (SELECT x.destination, count(*) AS n FROM idem.dead_letter x GROUP BY x.destination) l JOIN idem.destination d ON d.id = l.destination
    HAVING count(*) > 0;
    status := CASE WHEN detail IS NULL THEN 'ok' ELSE 'warning' END;
    detail := coalesce(detail, 'none');
    RETURN NEXT;

    -- transaction ids
    check_name := 'transaction ids';
    BEGIN
        PERFORM idem.check_xids(p)
           FROM idem.relay_partition rp JOIN idem.relay x ON x.id = rp.relay AND x.dropped_at IS NULL
          CROSS JOIN LATERAL idem.progress_of(x, rp.partition) p;
        status := 'ok';
        detail := 'in order';
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        status := 'critical';
        detail := 'they went backwards (a restore into a younger cluster): stop producers and relays, then SELECT @extschema@.idem_repair_relays()';
    END;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION idem_health() IS 'One row a check: ok, warning or critical, and what to do. Works on a standby.';
