-- The rotation. Each call of idem.rotate does at most one step, its transaction commits it, and the state in idem.ring
-- says what comes next: a crash between any two steps loses nothing.
--
--   steady   -> opening    claims go into current and next                                    (publish)
--   opening  -> emptying   nobody writes current alone any longer (fence): the ring turns     (publish)
--   emptying -> steady     nobody probes what fell off (fence): TRUNCATE
--
-- The self-conflicting lock serializes maintainers, and it is held until the invalidation of a step has been sent: a
-- fence that began in between would miss a claimer with the old state.

CREATE FUNCTION idem.publish() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.invalidate(TG_RELID);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem.publish() IS 'Every change of idem.ring and idem.destination makes the backends read them again at their next claim.';
-- ALWAYS: a step that is done with session_replication_role = replica must be told to the claims like any other.
CREATE TRIGGER publish AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idem.ring FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
ALTER TABLE idem.ring ENABLE ALWAYS TRIGGER publish;
CREATE TRIGGER publish AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idem.destination FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
ALTER TABLE idem.destination ENABLE ALWAYS TRIGGER publish;

CREATE FUNCTION idem.slice_table(ring text, slice integer) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.format('idem.%s_%s', CASE WHEN ring OPERATOR(pg_catalog.=) 'outbox' THEN 'outbox' ELSE 'inbox_' OPERATOR(pg_catalog.||) ring END, slice)::pg_catalog.regclass;
COMMENT ON FUNCTION idem.slice_table(text, integer) IS 'The table of a slice.';

CREATE FUNCTION idem.slice_tables(ring text, slice integer) RETURNS regclass[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN ARRAY[idem.slice_table(ring, slice)]
       OPERATOR(pg_catalog.||) CASE WHEN ring OPERATOR(pg_catalog.<>) 'outbox' THEN ARRAY[pg_catalog.format('idem.call_%s_%s', ring, slice)::pg_catalog.regclass] END;
COMMENT ON FUNCTION idem.slice_tables(text, integer) IS 'The tables that are emptied with a slice: those of the inbox bring that of the journal.';

-- The relays that have not acknowledged everything in a slice of the outbox. Exact without reading the slice: a
-- transaction is not behind a cursor when it began after the older snapshot, or when it was running then.
CREATE FUNCTION idem.relays_holding(slice integer) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    part    record;
    p       idem.progress;
    holds   boolean;
    holders text[] := '{}';
BEGIN
    FOR part IN
        SELECT r AS relay, rp.partition FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- A cursor that lies ahead cannot tell what it has seen: see idem_repair_relays.
        EXECUTE format('SELECT $5 OR EXISTS (SELECT 1 FROM %1$s o WHERE o.tx >= $1 AND o.partition_hash %% $3 = $4)
                                  OR EXISTS (SELECT 1 FROM unnest($2) x JOIN %1$s o ON o.tx = x WHERE o.partition_hash %% $3 = $4)',
                       idem.slice_table('outbox', slice))
          INTO holds
         USING pg_snapshot_xmax(p.snapshot_from), ARRAY(SELECT pg_snapshot_xip(p.snapshot_from)), (part.relay).partitions, part.partition,
               idem.lies_ahead(p);
        IF holds AND NOT (part.relay).name = ANY (holders) THEN
            holders := holders || (part.relay).name;
        END IF;
    END LOOP;
    RETURN holders;
END
$$;
COMMENT ON FUNCTION idem.relays_holding(integer) IS 'The relays for which a slice of the outbox still holds effects.';

CREATE FUNCTION idem.is_due(ring idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN idem.ran() >= ring.turned_at + idem.period(ring.retention);
END
$$;
COMMENT ON FUNCTION idem.is_due(idem.ring) IS 'Whether a ring has not turned for its period.';

-- Effects outlive the claims that they belong to: a duplicate finds its facts as long as it is a duplicate. Not by
-- remembers_since: the oldest slice of a ring holds claims too that were made while it was opening.
CREATE FUNCTION idem.outbox_may_turn(outbox idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    oldest    integer := (outbox.current + 2) % 4;
    sealed_at interval := outbox.started[(outbox.current + 3) % 4 + 1];
BEGIN
    RETURN idem.is_due(outbox)
       AND NOT EXISTS (SELECT 1 FROM idem.ring r WHERE r.name <> 'outbox' AND r.opened[(r.current + 2) % 4 + 1] < sealed_at)
       AND cardinality(idem.relays_holding(oldest)) = 0;
END
$$;
COMMENT ON FUNCTION idem.outbox_may_turn(idem.ring) IS 'Whether the oldest slice of the outbox is behind every relay and older than every claim.';

-- The clock is read here, after the fence: until the fence some claims went into current alone. What is claimed after this
-- moment stands in next.
CREATE FUNCTION idem.turn(ring idem.ring) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here interval := idem.tick();
BEGIN
    UPDATE idem.ring r
       SET current = (r.current + 1) % 4,
           opening = false,
           emptying = true,
           started[(r.current + 1) % 4 + 1] = here,
           -- The older of the two slices that are sealed from now on: current + 3. The first two turns forget nothing.
           remembers_since = CASE WHEN r.turns >= 2 THEN r.started[(r.current + 3) % 4 + 1] END,
           turned_at = here,
           turns = r.turns + 1
     WHERE r.id = (turn.ring).id;
END
$$;
COMMENT ON FUNCTION idem.turn(idem.ring) IS 'sealed <- current <- next.';

CREATE FUNCTION idem.rotate(ring_name text, wait boolean) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    r      idem.ring;
    fallen text;
BEGIN
    -- Without a lock first: a pass that finds nothing to do disturbs nothing.
    SELECT * INTO r FROM idem.ring x WHERE x.name = ring_name;
    IF NOT (r.opening OR r.emptying OR idem.is_due(r)) THEN
        RETURN 'idle';
    END IF;
    LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT * INTO r FROM idem.ring x WHERE x.name = ring_name;

    IF r.emptying THEN
        -- The moment is part of the name: a step that is published again has a fence of its own.
        IF NOT idem.fence(format('%s emptying %s %s', r.name, r.turns, r.turned_at), wait) THEN
            RETURN 'waiting';
        END IF;
        fallen := array_to_string(idem.slice_tables(r.name, (r.current + 1) % 4), ', ');
        -- If the lock is not granted soon, give up and try again later: other sessions queue behind the request.
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', fallen);
        IF r.name = 'outbox' AND cardinality(idem.relays_holding((r.current + 1) % 4)) > 0 THEN
            RETURN 'blocked';
        END IF;
        EXECUTE format('TRUNCATE %s', fallen);
        UPDATE idem.ring x SET emptying = false WHERE x.id = r.id;
        RETURN 'emptied';
    ELSIF r.opening THEN
        IF NOT idem.fence(format('%s opening %s %s', r.name, r.turns, r.opened[(r.current + 1) % 4 + 1]), wait) THEN
            RETURN 'waiting';
        END IF;
        PERFORM idem.turn(r);
        RETURN 'turned';
    ELSIF r.name = 'outbox' THEN
        -- An effect is found by whoever looks, in any slice: nothing to open.
        IF NOT idem.outbox_may_turn(r) THEN
            RETURN 'idle';
        END IF;
        PERFORM idem.turn(r);
        RETURN 'turned';
    ELSIF idem.is_due(r) THEN
        UPDATE idem.ring x SET opening = true, opened[(x.current + 1) % 4 + 1] = idem.tick() WHERE x.id = r.id;
        RETURN 'opened';
    END IF;
    RETURN 'idle';
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN 'locked';
END
$$;
COMMENT ON FUNCTION idem.rotate(text, boolean) IS 'One step of the rotation of a ring: opened, turned, emptied; or why not: idle, waiting (the fence), locked (somebody reads the slice, or another maintainer is at work), blocked (a relay).';

CREATE FUNCTION idem.turn_progress() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    now_in  integer;
    kept_in integer;
    newest  idem.progress[];
    bytes   bigint;
BEGIN
    -- Two maintainers that have read the tables must not both wait for them.
    LOCK TABLE idem.progress_turn IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    SELECT t.current INTO now_in FROM idem.progress_turn t;
    -- With TOAST: snapshots that list many transactions are stored there. A thousand pages: large enough to be rare, small
    -- enough to stay in memory.
    bytes := pg_table_size(format('idem.progress_%s', now_in)::regclass);
    IF bytes < 8 * 1024 * 1024 THEN
        RETURN false;
    -- The newest states of very many partitions are large by themselves: a turn has to make the table smaller.
    ELSIF bytes < 4 * (SELECT sum(200 + pg_column_size(p.snapshot_from) + coalesce(pg_column_size(p.snapshot_to), 0))
                         FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
                        CROSS JOIN LATERAL idem.progress_of(r, rp.partition) p) THEN
        RETURN false;
    END IF;
    -- In the order in which a relay locks them. While the first is held no relay makes a step, so the others are taken at once
    -- or not at all.
    LOCK TABLE idem.progress_0 IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE idem.progress_1, idem.progress_turn IN ACCESS EXCLUSIVE MODE NOWAIT;
    SELECT t.current INTO now_in FROM idem.progress_turn t;
    kept_in := 1 - now_in;
    -- One index look-up for each partition: relays wait meanwhile.
    newest := ARRAY(
        SELECT n.p FROM idem.relay_partition rp CROSS JOIN LATERAL (
            SELECT p FROM idem.progress p
             WHERE p.relay = rp.relay AND p.partition = rp.partition
             ORDER BY p.pos DESC LIMIT 1) n);
    -- The other stays as it is until the next turn: TRUNCATE hides rows from older snapshots, and a dump that began before
    -- must find the newest progress in one of the two.
    EXECUTE format('TRUNCATE idem.progress_%s', kept_in);
    EXECUTE format('INSERT INTO idem.progress_%s SELECT * FROM unnest($1)', kept_in) USING newest;
    UPDATE idem.progress_turn SET current = kept_in;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.turn_progress() IS 'Truncates the older table of progress, copies the newest of each partition into it, and goes on there.';
