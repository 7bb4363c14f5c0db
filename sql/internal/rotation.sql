-- The rotation of the rings. Each execution of idem.rotate does at most one step. Its transaction
-- commits the step, and the state in idem.ring determines the next one, so a crash between two
-- steps loses nothing.
--
--   steady    -> advancing  claims are written to the present and the next segment (invalidation)
--   advancing -> steady     after the fence no transaction writes to the present
--                           segment only: the next segment becomes present         (invalidation)
--   steady    -> opening    claims are written to the present segment of current,
--                           and to segment 0 of next                               (invalidation)
--   opening   -> emptying   after the fence no transaction writes to current only:
--                           the slices rotate                                      (invalidation)
--   emptying  -> steady     after the fence no transaction reads the oldest slice: TRUNCATE
--
-- So each two states that transactions use at the same time have a segment that both write, and its
-- unique index decides between their claims. Every other claim was committed, or rolled back,
-- before they entered. When a segment ends: see segments.sql.
--
-- A slice is rotated when its period has passed, however many segments were used. A step that
-- truncates waits at most 50 ms for its lock, because every session that needs the table waits
-- behind this request.
--
-- The outbox has no opening, because effects are searched in all its slices. A transaction that
-- entered before its rotation can still append to the sealed slice. The fence before the TRUNCATE
-- waits for it, and the outbox does not rotate again before that. Its retention is one and a half
-- times that of the longest ring: a claim is remembered for at most 1.17 times its retention, plus
-- delays.
--
-- The trigger publish on idem.ring sends the invalidation when a step commits.
--
-- Maintainers lock idem.ring in a mode that conflicts with itself, so only one of them does a step
-- at a time. The lock is held until the invalidation of the step has been sent. A fence that
-- another maintainer created before that would miss a claimer with the old state.

CREATE FUNCTION idem.slice_table(ring text, slice integer) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.format('idem.%s_%s',
                         CASE WHEN ring OPERATOR(pg_catalog.=) 'outbox' THEN 'outbox'
                              ELSE 'inbox_' OPERATOR(pg_catalog.||) ring END,
                         slice)::pg_catalog.regclass;
COMMENT ON FUNCTION idem.slice_table(text, integer) IS 'Returns the table of a slice.';

CREATE FUNCTION idem.slice_tables(ring text, slice integer) RETURNS regclass[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN ARRAY[idem.slice_table(ring, slice)]
       OPERATOR(pg_catalog.||)
       CASE WHEN ring OPERATOR(pg_catalog.<>) 'outbox'
            THEN ARRAY[pg_catalog.format('idem.call_%s_%s', ring, slice)::pg_catalog.regclass] END;
COMMENT ON FUNCTION idem.slice_tables(text, integer) IS
    'Returns the tables that are truncated with a slice: a slice of the inbox and the slice of '
    'the journal that belongs to it.';

-- Looks for effects of transactions that the older snapshot of the cursor does not see. The result
-- contains every relay that still needs an effect of the slice. It can also contain a relay that
-- has acknowledged these effects but not yet its whole pair of snapshots.
CREATE FUNCTION idem.relays_holding(slice integer) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    part    record;
    p       idem.progress;
    holds   boolean;
    holders text[] := '{}';
BEGIN
    FOR part IN
        SELECT r AS relay, rp.partition
          FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- A cursor that is ahead of this cluster does not show what is acknowledged, so its relay
        -- is always included: see idem_repair_relays.
        EXECUTE format('SELECT $5 OR EXISTS (SELECT 1 FROM %1$s o
                                              WHERE o.tx >= $1 AND o.partition_hash %% $3 = $4)
                                  OR EXISTS (SELECT 1 FROM unnest($2) x JOIN %1$s o ON o.tx = x
                                              WHERE o.partition_hash %% $3 = $4)',
                       idem.slice_table('outbox', slice))
          INTO holds
         USING pg_snapshot_xmax(p.snapshot_from), ARRAY(SELECT pg_snapshot_xip(p.snapshot_from)),
               (part.relay).partitions, part.partition, idem.lies_ahead(p);
        IF holds AND NOT (part.relay).name = ANY (holders) THEN
            holders := holders || (part.relay).name;
        END IF;
    END LOOP;
    RETURN holders;
END
$$;
COMMENT ON FUNCTION idem.relays_holding(integer) IS
    'Returns the names of the relays that may not have acknowledged all effects in a slice of the '
    'outbox.';

CREATE FUNCTION idem.is_due(ring idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN idem.ran() >= ring.rotated_at + idem.period(ring);
END
$$;
COMMENT ON FUNCTION idem.is_due(idem.ring) IS
    'Returns whether the last rotation of a ring is at least one period ago.';

-- A duplicate reads the effects of its claim. So the newest effect in the oldest slice of the
-- outbox must be older than every claim that can still be found. A slice of the inbox takes claims
-- from the time `opened`, which can be long before `started`, so compare with `opened`.
CREATE FUNCTION idem.outbox_may_rotate(outbox idem.ring) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    oldest    integer := outbox.slices[3];
    sealed_at interval := outbox.started[outbox.slices[4] + 1];
BEGIN
    RETURN idem.is_due(outbox)
       AND NOT EXISTS (SELECT 1 FROM idem.ring r
                        WHERE r.name <> 'outbox'
                          AND r.opened[r.slices[3] + 1] < sealed_at)
       AND cardinality(idem.relays_holding(oldest)) = 0;
END
$$;
COMMENT ON FUNCTION idem.outbox_may_rotate(idem.ring) IS
    'Returns whether every relay has acknowledged the oldest slice of the outbox, and the slice '
    'is older than every claim.';

-- The clock is read here, after the fence has passed, because until then some transactions wrote
-- their claims to current only. Every claim that is made after this reading is in next.
CREATE FUNCTION idem.rotate_slices(ring idem.ring) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now_ran interval := idem.tick();
BEGIN
    UPDATE idem.ring r
       SET slices = r.slices[2:] || r.slices[1],
           phase = 'emptying',
           segment = 0,
           segment_opened = r.opened[r.slices[2] + 1],
           segment_started = now_ran,
           segment_bytes = 0,
           started[r.slices[2] + 1] = now_ran,
           -- r has the values before this UPDATE. The slice r.slices[4] becomes the oldest sealed
           -- slice. The first rotations remove slices that were never used, so every claim is still
           -- found.
           remembers_since = CASE WHEN r.rotations >= cardinality(r.slices) - 2
                                  THEN r.started[r.slices[4] + 1] END,
           rotated_at = now_ran,
           rotations = r.rotations + 1
     WHERE r.id = (rotate_slices.ring).id;
END
$$;
COMMENT ON FUNCTION idem.rotate_slices(idem.ring) IS
    'Rotates the slices of a ring: current becomes sealed, next becomes current.';

-- The time is part of the step, because the number of rotations is set back when the state of a
-- dump is restored into this database, and does not change between two segments. It is a number,
-- because the text of an interval depends on IntervalStyle.
CREATE FUNCTION idem.published_step(r idem.ring) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%s %s %s %s', r.phase, r.rotations, r.segment,
                  (extract(epoch FROM CASE r.phase WHEN 'emptying' THEN r.rotated_at
                                                   WHEN 'advancing' THEN r.segment_opened
                                                   ELSE r.opened[r.slices[2] + 1] END)
                   * 1000000)::bigint);
$$;
COMMENT ON FUNCTION idem.published_step(idem.ring) IS
    'Returns the step of a ring that is not steady after which its fence was listed.';

CREATE FUNCTION idem.rotate(ring_name text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
AS $$
DECLARE
    r             idem.ring;
    oldest_tables regclass[];
BEGIN
    -- Check without a lock first, so that a pass with nothing to do disturbs no session.
    SELECT * INTO r FROM idem.ring x WHERE x.name = ring_name;
    IF r.phase = 'steady' AND NOT idem.is_due(r) AND NOT idem.segment_is_due(r) THEN
        RETURN 'idle';
    END IF;
    LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT * INTO r FROM idem.ring x WHERE x.name = ring_name;

    IF r.phase <> 'steady'
       AND NOT idem.fence('ring ' || r.name, idem.published_step(r), 'idem.ring') THEN
        RETURN 'waiting';
    ELSIF r.phase = 'emptying' THEN
        oldest_tables := idem.slice_tables(r.name, r.slices[2]);
        -- If the first lock is not granted soon, give up and retry later: other sessions queue
        -- behind the request. While the step holds this lock, it waits for no other lock.
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', oldest_tables[1]);
        IF cardinality(oldest_tables) > 1 THEN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', oldest_tables[2]);
        END IF;
        -- A relay that reads from the oldest effect may have been created since the slices rotated.
        -- Check this under the lock: if a relay is created between the check and the lock, it can
        -- read a part of the slice, and the TRUNCATE removes the rest.
        IF r.name = 'outbox' AND cardinality(idem.relays_holding(r.slices[2])) > 0 THEN
            RETURN 'blocked';
        -- A restore may have begun while this step waited for the locks.
        ELSIF idem.is_restoring() THEN
            RETURN 'restoring';
        END IF;
        EXECUTE format('TRUNCATE %s', array_to_string(oldest_tables, ', '));
        UPDATE idem.ring x SET phase = 'steady' WHERE x.id = r.id;
        RETURN 'emptied';
    ELSIF r.phase = 'opening' THEN
        PERFORM idem.rotate_slices(r);
        RETURN 'rotated';
    ELSIF r.phase = 'advancing' THEN
        UPDATE idem.ring x
           SET phase = 'steady', segment = x.segment + 1, segment_started = idem.tick()
         WHERE x.id = r.id;
        RETURN 'advanced';
    ELSIF r.name = 'outbox' THEN
        -- Effects are looked up in all slices, so the outbox has no opening step.
        IF NOT idem.outbox_may_rotate(r) THEN
            RETURN 'idle';
        END IF;
        PERFORM idem.rotate_slices(r);
        RETURN 'rotated';
    ELSIF idem.is_due(r) THEN
        UPDATE idem.ring x
           SET phase = 'opening', opened[x.slices[2] + 1] = idem.tick()
         WHERE x.id = r.id;
        -- The filter can be built later, so a lock on one of its tables does not stop the rotation.
        BEGIN
            PERFORM idem.prepare_opened_filter(r.id);
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN NULL;
        END;
        RETURN 'opened';
    ELSIF idem.segment_is_due(r) THEN
        UPDATE idem.ring x
           SET phase = 'advancing',
               segment_opened = idem.tick(),
               segment_bytes = pg_relation_size(idem.slice_table(x.name, x.slices[1]))
         WHERE x.id = r.id;
        RETURN 'advancing';
    END IF;
    RETURN 'idle';
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN 'locked';
END
$$;
COMMENT ON FUNCTION idem.rotate(text) IS
    'Does one step of the rotation of a ring, and returns it: advancing or advanced (a segment), '
    'opened, rotated or emptied (a slice). Otherwise returns why there was no step: idle (not '
    'due), waiting (for the fence), locked (a session reads the slice, or another maintainer is '
    'running), blocked (by a relay), restoring (a restore may have loaded the slice).';

CREATE FUNCTION idem.lock_out_claims() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
    -- This lock conflicts with the lock of every claim, and with itself, so only one transaction at
    -- a time configures or removes destinations.
    LOCK TABLE idem.ring IN SHARE ROW EXCLUSIVE MODE;
EXCEPTION
    WHEN lock_not_available THEN
        RAISE EXCEPTION 'transactions with claims, or a maintenance step, have not ended within '
                        '2 seconds'
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Try again, or find the long transaction in pg_stat_activity. New claims '
                         'wait behind this function, so it does not wait longer.';
END
$$;
COMMENT ON FUNCTION idem.lock_out_claims() IS
    'Prevents claims of other transactions until the end of the transaction. Error: 55P03.';
