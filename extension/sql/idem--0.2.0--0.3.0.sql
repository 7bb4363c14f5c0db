-- Upgrades the extension from 0.2.0 to 0.3.0: filters, and eight slices for each ring of the inbox.
-- All names outside of function bodies are resolved in pg_catalog.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- Waits for open transactions with a claim, and keeps new claims out. The locks on the slices that
-- follow can also wait for queries on idem.inbox.
LOCK TABLE idem.ring IN ACCESS EXCLUSIVE MODE;

-- The functions of the filters, and the constraint that spoils the filter of a slice.

CREATE FUNCTION idem.invalidate_filter(slice regclass) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'invalidate_filter_wrapper';
COMMENT ON FUNCTION idem.invalidate_filter(regclass) IS
    'Makes the filter of a slice exclude nothing, because a row arrives that was not added to it. '
    'Returns true. The constraints of the slices call it; claims do not execute them.';

CREATE FUNCTION idem.filter_states() RETURNS TABLE (
    ring                     integer,
    slice                    integer,
    status                   text,
    reason                   text,
    bytes                    bigint,
    bits_per_claim           integer,
    expected_false_positives double precision,
    observed_false_positives double precision,
    look_ups                 bigint
)
LANGUAGE c AS 'MODULE_PATHNAME', 'filter_states_wrapper';
COMMENT ON FUNCTION idem.filter_states() IS 'Returns the rows of the view idem.filters.';

CREATE FUNCTION idem.build_filters(ring integer) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'build_filters_wrapper';
COMMENT ON FUNCTION idem.build_filters(integer) IS
    'Does one step for the filters of a ring. Returns true if a step was done.';

DO $$
DECLARE
    ring  text;
    slice integer;
BEGIN
    FOREACH ring IN ARRAY ARRAY['short', 'standard', 'long'] LOOP
        FOR slice IN 0 .. 3 LOOP
            EXECUTE format($ddl$
                ALTER TABLE idem.inbox_%1$s_%2$s ADD CONSTRAINT row_invalidates_the_filter
                    CHECK (idem.invalidate_filter('idem.inbox_%1$s_%2$s'::pg_catalog.regclass))
                    NOT VALID;
                $ddl$, ring, slice);
            -- A filter that an update built before it was rolled back misses later claims.
            PERFORM idem.invalidate_filter(format('idem.inbox_%s_%s', ring, slice)::regclass);
        END LOOP;
        FOR slice IN 4 .. 7 LOOP
            EXECUTE format($ddl$
                CREATE TABLE idem.inbox_%1$s_%2$s (
                    key         uuid        NOT NULL,
                    claimed_at  timestamptz NOT NULL,
                    destination int4        NOT NULL,
                    id          text,
                    fingerprint bytea,
                    CONSTRAINT inbox_%1$s_%2$s_pkey PRIMARY KEY (key, destination)
                ) WITH (autovacuum_vacuum_insert_threshold = -1);
                ALTER TABLE idem.inbox_%1$s_%2$s ADD CONSTRAINT row_invalidates_the_filter
                    CHECK (idem.invalidate_filter('idem.inbox_%1$s_%2$s'::pg_catalog.regclass))
                    NOT VALID;
                COMMENT ON TABLE idem.inbox_%1$s_%2$s IS
                    'A slice of the inbox: claims. Written and read by idem_try_claim and related '
                    'functions only.';
                CREATE TABLE idem.call_%1$s_%2$s (
                    key         uuid        NOT NULL,
                    at          timestamptz NOT NULL,
                    destination int4        NOT NULL,
                    event       int4        NOT NULL,
                    kind        int2        NOT NULL,
                    step        text COLLATE pg_catalog."C" NOT NULL,
                    digest      bytea,
                    body        jsonb,
                    CONSTRAINT call_%1$s_%2$s_pkey PRIMARY KEY (key, destination, step, event)
                ) WITH (autovacuum_vacuum_insert_threshold = -1);
                COMMENT ON TABLE  idem.call_%1$s_%2$s IS
                    'A slice of the journal: external calls. Written and read by idem_begin_call '
                    'and related functions only.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.event IS
                    'The number of this event of the external call, from 0. Of two sessions that '
                    'record the same event at the same time, the primary key lets one write first.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.kind IS
                    '0: begun. 1: finished. 2: failed, and may be retried. 3: failed for good.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.digest IS
                    'SHA-256 of the request of the first attempt. Each event has it, because the '
                    'event that began the call may be forgotten first.';
                COMMENT ON COLUMN idem.call_%1$s_%2$s.body IS
                    'The response, or the error as a JSON string.';
                $ddl$, ring, slice);
            PERFORM pg_extension_config_dump(format('idem.inbox_%s_%s', ring, slice)::regclass, '');
            PERFORM pg_extension_config_dump(format('idem.call_%s_%s', ring, slice)::regclass, '');
        END LOOP;
    END LOOP;
END
$$;

-- The rings: each row gets the new slices.

CREATE FUNCTION idem.slice_numbers(ring int2) RETURNS int2[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE ring WHEN 3 THEN '{0,1,2,3}'::int2[] ELSE '{0,1,2,3,4,5,6,7}'::int2[] END;
COMMENT ON FUNCTION idem.slice_numbers(int2) IS
    'Returns the numbers of the slices of a ring: four slices of the outbox, eight of each ring '
    'of the inbox.';

CREATE FUNCTION idem.add_slices() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_slices int2[] := ARRAY(SELECT n FROM unnest(idem.slice_numbers(NEW.id)) n
                                WHERE n <> ALL (NEW.slices) ORDER BY n);
    count      integer := cardinality(new_slices);
    oldest     integer := NEW.slices[3] + 1;
BEGIN
    NEW.slices  := NEW.slices[:2] || new_slices || NEW.slices[3:];
    NEW.opened  := NEW.opened || array_fill(NEW.opened[oldest], ARRAY[count]);
    NEW.started := NEW.started || array_fill(NEW.started[oldest], ARRAY[count]);
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.add_slices() IS
    'Trigger function: adds the slices that a ring does not have, because its row was written by '
    'an earlier version.';
CREATE TRIGGER add_slices BEFORE INSERT ON idem.ring
    FOR EACH ROW EXECUTE FUNCTION idem.add_slices();
ALTER TABLE idem.ring ENABLE ALWAYS TRIGGER add_slices;

ALTER TABLE idem.ring
    ALTER COLUMN slices  DROP DEFAULT,
    ALTER COLUMN opened  DROP DEFAULT,
    ALTER COLUMN started DROP DEFAULT,
    DROP CONSTRAINT ring_has_each_slice_once,
    DROP CONSTRAINT ring_has_times_of_each_slice;
-- The triggers of the table replace each row by one with all slices, as they do for a dump.
INSERT INTO idem.ring SELECT r.* FROM idem.ring r;
-- The periods are shorter now, so no rotation was due before.
UPDATE idem.ring r SET scheduled_at = idem.ran() WHERE r.name <> 'outbox';
ALTER TABLE idem.ring
    ADD CONSTRAINT ring_has_each_slice_once
        CHECK (slices OPERATOR(pg_catalog.@>) idem.slice_numbers(id)
               AND pg_catalog.cardinality(slices)
                   OPERATOR(pg_catalog.=) pg_catalog.cardinality(idem.slice_numbers(id))),
    ADD CONSTRAINT ring_has_times_of_each_slice
        CHECK (pg_catalog.cardinality(opened)
                   OPERATOR(pg_catalog.=) pg_catalog.cardinality(slices)
               AND pg_catalog.cardinality(started)
                   OPERATOR(pg_catalog.=) pg_catalog.cardinality(slices));

-- The rotation.

-- Its callers are replaced below.
DROP FUNCTION idem.period(interval);
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

CREATE FUNCTION idem.build_all_filters() RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(bool_or(idem.build_filters(r.id)), false)
      FROM idem.ring r
     WHERE r.name <> 'outbox'
       AND EXISTS (SELECT FROM idem.destination d
                    WHERE d.ring = r.id
                       OR CASE r.name WHEN 'short'    THEN d.left_short
                                      WHEN 'standard' THEN d.left_standard
                                      ELSE d.left_long END IS NOT NULL);
$$;
COMMENT ON FUNCTION idem.build_all_filters() IS
    'Maintenance step: does one step for the filters of each ring that is used. Returns true if a '
    'step was done.';

CREATE OR REPLACE FUNCTION idem.is_due(ring idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN idem.ran() >= ring.rotated_at + idem.period(ring);
END
$$;
COMMENT ON FUNCTION idem.is_due(idem.ring) IS
    'Returns whether the last rotation of a ring is at least one period ago.';

CREATE OR REPLACE FUNCTION idem.overdue(r idem.ring) RETURNS interval
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

CREATE OR REPLACE FUNCTION idem.check_rotation()
RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r       idem.ring;
    late    interval;
    holders text;
BEGIN
    FOR r IN SELECT * FROM idem.ring x WHERE x.name <> 'outbox' ORDER BY x.id LOOP
        late := justify_hours(date_trunc('second', idem.overdue(r)));
        check_name := 'rotation ' || r.name;
        status := CASE WHEN late > greatest(2 * idem.period(r), '5 minutes') THEN 'critical'
                       WHEN late > greatest(idem.period(r) / 2, '1 minute') THEN 'warning'
                       ELSE 'ok' END;
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
            detail := format('late by %s: ', late) || CASE
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

CREATE OR REPLACE FUNCTION idem.rotate_slices(ring idem.ring) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now_ran interval := idem.tick();
BEGIN
    UPDATE idem.ring r
       SET slices = r.slices[2:] || r.slices[1],
           opening = false,
           emptying = true,
           started[r.slices[2] + 1] = now_ran,
           -- r has the values before this UPDATE. The slice r.slices[4] becomes the oldest sealed
           -- slice. The first rotations remove slices that were never used, so every claim is still
           -- found. A ring that got more slices by an upgrade may have removed claims after fewer
           -- rotations, so the column is kept.
           remembers_since = greatest(r.remembers_since,
                                      CASE WHEN r.rotations >= cardinality(r.slices) - 2
                                           THEN r.started[r.slices[4] + 1] END),
           rotated_at = now_ran,
           rotations = r.rotations + 1
     WHERE r.id = (rotate_slices.ring).id;
END
$$;
COMMENT ON FUNCTION idem.rotate_slices(idem.ring) IS
    'Rotates the slices of a ring: current becomes sealed, next becomes current.';

CREATE OR REPLACE FUNCTION idem.maintenance_steps() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN ARRAY['clock', 'ring short', 'ring standard', 'ring long', 'ring outbox',
             'pending messages', 'payloads', 'progress', 'filters'];
COMMENT ON FUNCTION idem.maintenance_steps() IS
    'Returns the steps of a maintenance pass in their order.';

CREATE OR REPLACE FUNCTION idem.run_step(step text, wait boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF starts_with(step, 'ring ') THEN
        RETURN idem.rotate(substr(step, 6), wait) IN ('opened', 'rotated', 'emptied');
    ELSIF step = 'clock' THEN
        PERFORM idem.keep_clock();
        RETURN false;
    ELSIF step = 'pending messages' THEN
        RETURN idem.rotate_pending();
    ELSIF step = 'payloads' THEN
        RETURN idem.rotate_payloads(wait => run_step.wait);
    ELSIF step = 'progress' THEN
        RETURN idem.rotate_progress();
    ELSIF step = 'filters' THEN
        RETURN idem.build_all_filters();
    END IF;
    RAISE EXCEPTION 'there is no maintenance step "%"', step
        USING ERRCODE = 'invalid_parameter_value', HINT = 'See idem.maintenance_steps().';
END
$$;
COMMENT ON FUNCTION idem.run_step(text, boolean) IS
    'Runs a maintenance step. Returns true if it changed something and may have more to do.';

-- Views, health and privileges.

CREATE OR REPLACE VIEW idem.inbox AS
    SELECT DISTINCT c.ring,
           d.name AS destination,
           COALESCE(c.id, c.key::text) AS id,
           c.claimed_at,
           c.fingerprint
      FROM (          SELECT 'short' AS ring, * FROM idem.inbox_short_0
            UNION ALL SELECT 'short', * FROM idem.inbox_short_1
            UNION ALL SELECT 'short', * FROM idem.inbox_short_2
            UNION ALL SELECT 'short', * FROM idem.inbox_short_3
            UNION ALL SELECT 'short', * FROM idem.inbox_short_4
            UNION ALL SELECT 'short', * FROM idem.inbox_short_5
            UNION ALL SELECT 'short', * FROM idem.inbox_short_6
            UNION ALL SELECT 'short', * FROM idem.inbox_short_7
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_0
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_1
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_2
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_3
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_4
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_5
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_6
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_7
            UNION ALL SELECT 'long', * FROM idem.inbox_long_0
            UNION ALL SELECT 'long', * FROM idem.inbox_long_1
            UNION ALL SELECT 'long', * FROM idem.inbox_long_2
            UNION ALL SELECT 'long', * FROM idem.inbox_long_3
            UNION ALL SELECT 'long', * FROM idem.inbox_long_4
            UNION ALL SELECT 'long', * FROM idem.inbox_long_5
            UNION ALL SELECT 'long', * FROM idem.inbox_long_6
            UNION ALL SELECT 'long', * FROM idem.inbox_long_7) c
      JOIN idem.destination d ON d.id = c.destination;
COMMENT ON VIEW idem.inbox IS
    'The claims, with readable ids. During a rotation a claim can be in two slices; the view '
    'shows it once.';

CREATE VIEW idem.filters AS
    SELECT r.name AS ring, f.slice, f.status, f.reason, f.bytes, f.bits_per_claim,
           f.expected_false_positives, f.observed_false_positives, f.look_ups
      FROM idem.filter_states() f JOIN idem.ring r ON r.id = f.ring;
COMMENT ON VIEW idem.filters IS
    'The filter of each slice in which a claim can be. A claim reads a slice unless its filter is '
    'complete and excludes the claim. status: complete, building or none; reason: why it is not '
    'complete. expected_false_positives: the false-positive rate, computed from the bits; '
    'observed_false_positives: the rate of the look-ups since the filter was built. Filters are in '
    'shared memory: a dump, a standby and a server that has just started have none.';

CREATE FUNCTION idem.check_filters() RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    WITH large AS (
        SELECT f.ring, format('%s slices of ring %s (%s)', count(*), r.name, f.reason) AS what
          FROM idem.filter_states() f JOIN idem.ring r ON r.id = f.ring
         WHERE f.status = 'none'
           AND pg_relation_size(idem.slice_table(r.name, f.slice)) > 8 * 1024 * 1024
         GROUP BY f.ring, r.name, f.reason)
    SELECT 'filters',
           CASE WHEN NOT w.uses_filters OR l.slices IS NULL THEN 'ok' ELSE 'warning' END,
           CASE WHEN NOT w.uses_filters THEN 'this server uses no filters'
                WHEN l.slices IS NULL THEN 'every large slice has a filter'
                ELSE format('each claim reads large slices without a filter: %s. See idem.filters',
                            l.slices) END
      FROM (SELECT string_agg(x.what, ', ' ORDER BY x.ring, x.what) AS slices FROM large x) l,
           (SELECT x.preloaded AND NOT pg_is_in_recovery()
                   AND current_setting('idem.filter_memory', true) <> '0' AS uses_filters
              FROM idem.worker_state() x) w;
$$;
COMMENT ON FUNCTION idem.check_filters() IS
    'Reports large slices without a filter, which each claim must read.';

CREATE OR REPLACE FUNCTION @extschema@.idem_health()
RETURNS TABLE (check_name text, status text, detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r       idem.ring;
    late    interval;
    holders text[];
    behind  text;
BEGIN
    RETURN QUERY SELECT c.* FROM idem.check_worker() c;
    RETURN QUERY SELECT c.* FROM idem.check_clock() c;
    RETURN QUERY SELECT c.* FROM idem.check_maintenance() c;
    RETURN QUERY SELECT c.* FROM idem.check_rotation() c;
    RETURN QUERY SELECT c.* FROM idem.check_filters() c;

    -- the outbox
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'outbox';
    holders := idem.relays_holding(r.slices[CASE WHEN r.emptying THEN 2 ELSE 3 END]);
    check_name := 'outbox';
    IF cardinality(holders) > 0 AND (r.emptying OR idem.is_due(r)) THEN
        status := 'critical';
        detail := format('the oldest slice cannot be truncated: relay %s has not acknowledged it. '
                         'The outbox grows until the relay runs again or is dropped with '
                         'idem_drop_relay',
                         array_to_string(holders, ', '));
    ELSIF r.emptying AND idem.ran() - r.rotated_at > '5 minutes' THEN
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
           || coalesce(format('. Destination %s is near idem.max_dead_letters: above this limit '
                              'rejected messages stay at their brokers, and consumers pause',
                              behind), '');
    RETURN NEXT;

    -- destinations
    check_name := 'destinations';
    detail := format('%s names', idem.destination_count());
    status := CASE WHEN idem.destination_count() > 100000 THEN 'warning' ELSE 'ok' END;
    IF status <> 'ok' THEN
        detail := detail || ': a destination names a consumer, not a message. Remove unused names '
                            'with idem_remove_destination';
    END IF;
    RETURN NEXT;

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
COMMENT ON FUNCTION @extschema@.idem_health() IS
    'Returns one row for each check: status is ok, warning or critical, and detail is the problem '
    'and what to do. Works on a standby.';

INSERT INTO idem.view_of_kind (kind, may_read) VALUES
    ('monitor', 'filters'), ('admin', 'filters');
CREATE OR REPLACE FUNCTION idem.privileges_of_kind(kind text)
RETURNS TABLE (privilege text, object text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'USAGE', 'SCHEMA @extschema@'
    UNION ALL
    SELECT 'EXECUTE',
           CASE f.prokind WHEN 'p' THEN 'PROCEDURE ' ELSE 'FUNCTION ' END || f.oid::regprocedure
      FROM idem.kind_of_role k
      JOIN pg_proc f ON f.proname = k.may_call
      JOIN pg_depend e ON e.classid = 'pg_proc'::regclass AND e.objid = f.oid AND e.deptype = 'e'
                      AND e.refclassid = 'pg_extension'::regclass
      JOIN pg_extension x ON x.oid = e.refobjid AND x.extname = 'idem'
     WHERE k.kind = privileges_of_kind.kind
    UNION ALL
    SELECT 'EXECUTE', format('FUNCTION idem.granted_%s()', privileges_of_kind.kind)
    UNION ALL
    SELECT 'USAGE', 'SCHEMA idem'
     WHERE EXISTS (SELECT 1 FROM idem.view_of_kind v WHERE v.kind = privileges_of_kind.kind)
    UNION ALL
    SELECT 'SELECT', 'TABLE idem.' || v.may_read
      FROM idem.view_of_kind v WHERE v.kind = privileges_of_kind.kind
    UNION ALL
    -- A view calls its functions with the privileges of the role that reads the view.
    SELECT 'EXECUTE', 'FUNCTION idem.' || f.behind
      FROM unnest(ARRAY['waiting()', 'relay_states()', 'counters()', 'ran()', 'filter_states()',
                        'slice_table(text, integer)', 'slice_tables(text, integer)']) f (behind)
     WHERE privileges_of_kind.kind IN ('monitor', 'admin')
    UNION ALL
    -- idem_maintain runs with the privileges of its caller, because only such a procedure can
    -- commit.
    SELECT 'EXECUTE', 'FUNCTION idem.' || f.behind
      FROM unnest(ARRAY['maintenance_steps()', 'maintain_step(text, boolean)']) f (behind)
     WHERE privileges_of_kind.kind = 'admin'
$$;
COMMENT ON FUNCTION idem.privileges_of_kind(text) IS
    'Returns what idem_grant grants for a kind and idem_revoke revokes: privileges, and objects '
    'as GRANT names them.';

CREATE OR REPLACE FUNCTION @extschema@.idem_set_retention(ring text, retention interval)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    asks record;
BEGIN
    IF ring IS NULL OR retention IS NULL THEN
        RAISE EXCEPTION 'ring and retention must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF ring NOT IN ('short', 'standard', 'long') THEN
        RAISE EXCEPTION 'there is no ring "%"', ring
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The rings are short, standard and long.';
    ELSIF retention NOT BETWEEN '100 milliseconds' AND '10 years' THEN
        RAISE EXCEPTION 'retention is %', retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 100 milliseconds and 10 years.';
    END IF;
    LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE;
    UPDATE idem.ring r
       SET retention = idem_set_retention.retention, scheduled_at = idem.ran()
     WHERE r.name = idem_set_retention.ring;
    IF (SELECT max(r.retention) FILTER (WHERE r.name = 'short')
                   > min(r.retention) FILTER (WHERE r.name = 'standard')
            OR max(r.retention) FILTER (WHERE r.name = 'standard')
                   > min(r.retention) FILTER (WHERE r.name = 'long')
          FROM idem.ring r) THEN
        RAISE EXCEPTION 'the retentions of the rings would be out of order'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The retention of short must not exceed that of standard, and that of '
                         'standard must not exceed that of long: change the rings in an order that '
                         'keeps this true.';
    END IF;
    SELECT d.name, d.retention INTO asks FROM idem.destination d JOIN idem.ring r ON r.id = d.ring
     WHERE d.retention > r.retention ORDER BY d.retention DESC LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'destination "%" needs a retention of %', asks.name, asks.retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Change its retention first with idem_configure.';
    END IF;
    -- A claim is kept for up to 1.17 retentions. Its effects must be kept longer, so the retention
    -- of the outbox depends on that of the claims.
    UPDATE idem.ring r
       SET retention = (SELECT max(i.retention) * 1.5 FROM idem.ring i WHERE i.name <> 'outbox'),
           scheduled_at = idem.ran()
     WHERE r.name = 'outbox';
END
$$;
COMMENT ON FUNCTION @extschema@.idem_set_retention(text, interval) IS
    'Sets how long a ring (short, standard or long) finds its claims at least: 100 milliseconds '
    'to 10 years. A shorter retention takes effect at the next rotation, also for existing '
    'claims. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby or read-only '
    'transaction).';

-- Default privileges may have given privileges on the new objects to other roles.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT DISTINCT m.what, m.name, a.grantee
          FROM (SELECT 'FUNCTION' AS what, f.oid::regprocedure::text AS name, f.proowner AS owner,
                       coalesce(f.proacl, acldefault('f', f.proowner)) AS acl
                  FROM pg_proc f
                 WHERE f.pronamespace = 'idem'::regnamespace
                   AND f.proname = ANY ('{invalidate_filter, filter_states, build_filters,
                                          build_all_filters, slice_numbers, add_slices, period,
                                          check_filters}')
                UNION ALL
                SELECT 'TABLE', c.oid::regclass::text, c.relowner, c.relacl
                  FROM pg_class c
                 WHERE c.relnamespace = 'idem'::regnamespace
                   AND (c.relkind = 'r' AND c.relname ~ '^(inbox|call)_[a-z]+_[4-7]$'
                        OR c.relname = 'filters')) m
         CROSS JOIN LATERAL aclexplode(m.acl) a
         WHERE a.grantee <> m.owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', given.what, given.name,
                       CASE given.grantee WHEN 0 THEN 'PUBLIC'
                                          ELSE given.grantee::regrole::text END);
    END LOOP;
END
$$;

-- Makes every session check the version and read the rings again.
SELECT idem.invalidate('idem.ring'::regclass);
